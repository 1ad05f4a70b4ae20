// SPDX-License-Identifier: MIT
// rotations.h5: /layers/<id>/{key,value}/{rotation,eigenvalues,covariance}, float32 matrices, attributes as in the
// manifest.
#pragma once

#include <filesystem>

#include "rotation/rotation_set.hpp"

namespace oscar {

void write_rotation_h5(const std::filesystem::path& path, const RotationSet& set);
/// Fills the matrices of the layers that `set` lists (by layer_id). Throws DataError if one is missing or of another
/// shape.
void read_rotation_h5(const std::filesystem::path& path, RotationSet& set);

}  // namespace oscar
