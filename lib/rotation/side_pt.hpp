// SPDX-License-Identifier: MIT
// One side of a set as the value that its .pt file holds.
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

}  // namespace oscar
