// SPDX-License-Identifier: MIT
// Parts of a set as the values that .pt files hold: one side, the mean keys, the latent rows of a layer.
#pragma once

#include <filesystem>
#include <string>

#include "rotation/rotation_set.hpp"
#include "tensor/pt.hpp"

namespace oscar {

/// Keys or values: &LayerRotation::key, or &LayerRotation::value.
using SideOfLayer = SideTransform LayerRotation::*;

/// version: 0 = the lowest that holds the side, else 1, 2 or 3. Throws DataError, with `where`, if that cannot hold it.
[[nodiscard]] PtValue side_pt(const RotationSet& set, SideOfLayer side, int version, const std::string& where);

/// {"layers": {id: {"mu": float32 [heads, d]}}}, zeros where a layer has no mean.
[[nodiscard]] PtValue key_means_pt(const RotationSet& set);

/// The bare matrix, which every tree reads; a dict of rotation, q_rotation and mean where the layer has more than it.
[[nodiscard]] PtValue latent_pt(const LayerRotation& layer);

}  // namespace oscar
