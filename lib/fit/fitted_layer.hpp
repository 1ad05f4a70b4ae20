// SPDX-License-Identifier: MIT
// A layer that is fitted, as a fit keeps it until its set is written: in memory, or as a set of one layer in a file.
#pragma once

#include <string>
#include <vector>

#include "fit/clip_choice.hpp"
#include "fit/kept_layers.hpp"
#include "rotation/rotation_set.hpp"

namespace oscar {

struct FittedLayer {
  LayerRotation layer;
  /// What its clip ratios were fitted on, in words; "" if they were not fitted.
  std::string clip_sample;
};

/// Returns a keeper of fitted layers. unfitted: the set that they belong to.
[[nodiscard]] KeptLayers<FittedLayer> kept_fit(const PartialFolder* folder, RotationSet unfitted);

/// Puts the layers, in order, into their set, and chooses its scalar clip ratios.
void join(std::vector<FittedLayer> layers, const ClipChoice& clip, RotationSet& set);

}  // namespace oscar
