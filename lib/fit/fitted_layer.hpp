// SPDX-License-Identifier: MIT
// What a fit writes down: of which recipe, data and options a set is, before its layers are there, and each layer as
// soon as it is fitted.
#pragma once

#include <string>
#include <vector>

#include "base/json.hpp"
#include "dump/source.hpp"
#include "fit/clip_choice.hpp"
#include "fit/kept_layers.hpp"
#include "fit/options.hpp"
#include "set/rotation_part.hpp"

namespace oscar {

/// Returns a set with everything but its origin and its layers.
[[nodiscard]] RotationPart unfitted_set(const Recipe& recipe, const FitOptions& options);
/// Returns a set with everything but its layers. Throws UsageError as resolve_recipe() does.
[[nodiscard]] RotationPart unfitted_set(const QkvSource& source, const FitOptions& options);
/// Returns all that decides a fit's result. unfitted: tells the model and the data.
[[nodiscard]] Json describe_fit(const RotationPart& unfitted, const FitOptions& options);

struct FittedLayer {
  LayerRotation layer;
  /// What its clip ratios were fitted on, in words; "" if they were not fitted.
  std::string clip_sample;
};

/// Returns a keeper of fitted layers. unfitted: the set that they belong to.
[[nodiscard]] KeptLayers<FittedLayer> kept_fit(const PartialFolder* folder, RotationPart unfitted);

/// Puts the layers, in order, into their set, and chooses its scalar clip ratios.
void join(std::vector<FittedLayer> layers, const ClipChoice& clip, RotationPart& set);

}  // namespace oscar
