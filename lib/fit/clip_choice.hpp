// SPDX-License-Identifier: MIT
// The clip ratios of a set: fixed, fitted layer by layer, or none because the codec takes none.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "fit/recipe.hpp"
#include "kernels/backend.hpp"
#include "rotation/rotation_set.hpp"

namespace oscar {

/// Chooses the clip ratios of layers one by one, from any thread, and at last the scalar of the whole set.
class ClipChoice {
 public:
  /// Throws UsageError if the ratios of `options` cannot be read.
  ClipChoice(const FitOptions& options, const Recipe& recipe, Backend& backend, Status& status);

  /// What the fit must keep of a layer's data; nothing if the ratios are not fitted.
  [[nodiscard]] std::vector<SampledSequence> sample(LayerStream& stream) const;
  /// Codec of the keys before their ratio is fitted: the fixed one, or the published constant.
  [[nodiscard]] RowCodec first_key_codec() const;
  void apply(const std::vector<SampledSequence>& sample, LayerRotation& layer) const;
  /// description: of the sample, for the record.
  void finish(const std::string& description, RotationSet& set) const;

 private:
  ClipFitOptions options_;
  Windows windows_;
  HistoryCodecs codecs_;
  bool key_per_head_, value_per_head_;
  std::optional<std::pair<double, double>> fixed_;
  Backend& backend_;
  Status& status_;
};

}  // namespace oscar
