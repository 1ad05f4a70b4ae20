// SPDX-License-Identifier: MIT
// Transforms: what a recipe makes of the moments of many layers.
#pragma once

#include <vector>

#include "base/status.hpp"
#include "fit/layer_moments.hpp"
#include "fit/recipe.hpp"
#include "kernels/backend.hpp"
#include "rotation/rotation_set.hpp"

namespace oscar {

/// Transforms, eigenvalues and covariances of layers, in order, rounded to float32. Clip ratios are left at 0.
/// A stretch that bfloat16 would spoil is regularised until it does not, with a notice.
[[nodiscard]] std::vector<LayerRotation> fit_transforms(const std::vector<LayerMoments>& layers, const Recipe& recipe,
                                                        Backend& backend, Status& status);

}  // namespace oscar
