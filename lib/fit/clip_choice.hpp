// SPDX-License-Identifier: MIT
// The clip ratios of rotations: fixed, fitted layer by layer, or none because the codec takes none.
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

/// Chooses the clip ratios of layers one by one, from any thread, and at last the scalar of all.
class ClipChoice {
 public:
  /// sample: how the samples of layers were drawn; none: there are none, and fitted ratios are the published constants,
  /// with a notice. Throws UsageError if the ratios of `options` cannot be read.
  ClipChoice(const FitOptions& options, const Recipe& recipe, const std::optional<SampleOptions>& sample,
             Backend& backend, Status& status);

  /// Chooses the ratios of a layer. sample: of its rows; empty where no sequence is longer than the windows.
  void apply(const std::vector<SampledSequence>& sample, LayerRotation& layer) const;
  /// Chooses the scalar ratios of rotations whose layers have theirs. sample: of one layer, to describe all.
  void finish(const std::vector<SampledSequence>& sample, RotationPart& part) const;

 private:
  SampleOptions options_;
  Recipe recipe_;
  std::optional<std::pair<double, double>> fixed_;
  Backend& backend_;
  Status& status_;
};

}  // namespace oscar
