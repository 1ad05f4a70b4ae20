// SPDX-License-Identifier: MIT
// The clip ratios of a set: fixed, fitted layer by layer, or none because the codec takes none.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "fit/options.hpp"
#include "kernels/backend.hpp"
#include "method/clip.hpp"
#include "set/rotation_part.hpp"

namespace oscar {

/// Chooses the clip ratios of layers one by one, from any thread, and at last the scalar of the whole set.
class ClipChoice {
 public:
  /// Throws UsageError if the ratios of `options` cannot be read.
  ClipChoice(const FitOptions& options, const Recipe& recipe, Backend& backend, Status& status);

  /// Returns which rows of a layer the ratios are fitted on; nothing if they are not fitted.
  [[nodiscard]] std::optional<SampleOptions> sample_options() const;
  /// Chooses the ratios of a layer. sample: of its rows; empty where no sequence is longer than the windows.
  void apply(const std::vector<SampledSequence>& sample, LayerRotation& layer) const;
  /// Chooses the scalar ratios of a set whose layers have theirs. description: of the sample, for the record.
  void finish(const std::string& description, RotationPart& set) const;

 private:
  SampleOptions options_;
  Recipe recipe_;
  std::optional<std::pair<double, double>> fixed_;
  Backend& backend_;
  Status& status_;
};

}  // namespace oscar
