// SPDX-License-Identifier: MIT
// A side of a set, its mean keys and latent rows as .pt files, float32, as the published tooling writes and servers
// read them:
//   {format_version: 1, objective: str, source_grouping: "layer", layers: {int: {layer_id, rotation f32 [d, d],
//   eigenvalues f32 [d]}}}
// Version 2 has rotation [Hkv, d, d] and source_grouping "head". Version 3 adds, where they are not trivial, the read
// side (q_rotation of keys, o_rotation of values, shaped as rotation) and k_mean ([Hkv, d], or [d] for all heads). Ours
// also say in calibration.clip_ratio {layer: f64 [1] or [Hkv]} and clip_scalar (one for all) how rows are clipped.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "set/formats.hpp"
#include "set/rotation_part.hpp"
#include "tensor/pt.hpp"

namespace oscar {

/// Keys or values: &LayerRotation::key, or &LayerRotation::value.
using SideOfLayer = SideTransform LayerRotation::*;

/// Returns what a .pt file of this side holds; eigenvalues that are not known are left out. version: 0 = the lowest
/// that holds the side, else 1, 2 or 3. Throws DataError, with `where`, if that cannot hold it.
[[nodiscard]] PtValue side_pt(const RotationPart& set, SideOfLayer side, int version, const std::string& where);

/// {"layers": {id: {"mu": float32 [heads, d]}}}, zeros where a layer has no mean.
[[nodiscard]] PtValue key_means_pt(const RotationPart& set);

/// The bare matrix, which every tree reads; a dict of rotation, q_rotation and mean where the layer has more than it.
[[nodiscard]] PtValue latent_pt(const LayerRotation& layer);

}  // namespace oscar
