// SPDX-License-Identifier: MIT
// rotations.h5: the tensors of set_file.hpp with '/', and attributes that repeat what the manifest says, for
// readers that have nothing else.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "rotation/rotation_set.hpp"
#include "tensor/hdf5.hpp"

namespace oscar {

/// Writes `set` as a file of its own. alone: the manifest goes into it, as a dataset of bytes. Throws IoError.
void write_set_h5(const std::filesystem::path& path, const RotationSet& set, bool alone);

/// Returns a clause for each attribute, tensor or object of the file that does not follow from `set`.
[[nodiscard]] std::vector<std::string> h5_disagreements(const Hdf5Reader& file, const RotationSet& set, bool alone);

/// Looks at a file without a manifest, whose matrices `set` has. Throws DataError if the file has tensors beside them,
/// or attributes of write_set_h5() with another type, or with values that no set has.
void require_bare_h5(const Hdf5Reader& file, const RotationSet& set, const std::string& where);

}  // namespace oscar
