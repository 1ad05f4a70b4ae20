// SPDX-License-Identifier: MIT
// A whole set in one file: HDF5 (rotations.h5) or safetensors. Each holds the tensors of named_tensors.hpp and, where
// the file stands alone, the manifest too (a dataset "manifest" of bytes, the metadata "manifest"), so that nothing is
// lost. A file without it tells what its attributes tell.
#pragma once

#include <filesystem>

#include "rotation/rotation_set.hpp"

namespace oscar {

enum class SetFileKind { kH5, kSafetensors };
/// alone: with the manifest. Inside a set's folder, manifest.json stands beside the file and lists its hash.
void write_set_file(const std::filesystem::path& path, SetFileKind kind, const RotationSet& set, bool alone);

/// Fills the matrices of the layers that `set` lists from a rotations.h5. Throws DataError.
void fill_from_h5(const std::filesystem::path& path, RotationSet& set);

/// Fills the matrices of the layers that `set` lists from a rotations.safetensors. Throws DataError.
void fill_from_safetensors(const std::filesystem::path& path, RotationSet& set);

/// Lists what in a rotations.safetensors beside a manifest does not follow from `set`.
[[nodiscard]] std::vector<std::string> safetensors_disagreements(const std::filesystem::path& path,
                                                                 const RotationSet& set);

/// Reads a set from one file. Throws DataError: not a set, or one that does not fit together.
[[nodiscard]] RotationSet read_set_file(const std::filesystem::path& path, SetFileKind kind);

}  // namespace oscar
