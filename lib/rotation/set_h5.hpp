// SPDX-License-Identifier: MIT
// rotations.h5: the tensors of named_tensors.hpp with '/', and attributes that repeat what the manifest says, for
// readers that have nothing else.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "rotation/rotation_set.hpp"
#include "tensor/hdf5.hpp"

namespace oscar {

/// alone: with the manifest, as a dataset of bytes.
void write_set_h5(const std::filesystem::path& path, const RotationSet& set, bool alone);

/// What in the file does not follow from `set`: attributes, tensors, and objects that should not be there.
[[nodiscard]] std::vector<std::string> h5_disagreements(const Hdf5Reader& file, const RotationSet& set, bool alone);

/// Of a file without a manifest, whose matrices `set` has: throws DataError if it has other tensors than they, or
/// attributes of write_set_h5() with another type, or with values that no set has.
void require_bare_h5(const Hdf5Reader& file, const RotationSet& set, const std::string& where);

}  // namespace oscar
