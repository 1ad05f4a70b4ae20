// SPDX-License-Identifier: MIT
// A whole set in one file, HDF5 (rotations.h5) or safetensors, as named tensors layers.<id>.{key,value}.{rotation,
// q_rotation|o_rotation, mean, eigenvalues, covariance, query_covariance}, float32, with '/' or another separator.
// Where the file stands alone it has the manifest too (a dataset "manifest" of bytes, the metadata "manifest"),
// so that nothing is lost. A file without it tells what its attributes tell.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "set/rotation_part.hpp"

namespace oscar {

[[nodiscard]] std::vector<std::pair<std::string, Tensor>> tensors_of(const RotationPart& set, char separator);

/// Throws DataError if a matrix, a mean or an eigenvalue is not finite as float32, which is how sets are written, or if
/// a rotation has entries beyond 1e6, which none that keeps scores has.
void require_finite(const RotationPart& set, const std::string& where);

enum class SetFileKind { kH5, kSafetensors };
/// alone: with the manifest. Inside a set's folder, manifest.json stands beside the file and lists its hash.
void write_set_file(const std::filesystem::path& path, SetFileKind kind, const RotationPart& set, bool alone);

/// Both fill the matrices of the layers that `set` lists (by layer_id). Throw DataError if a rotation is missing or
/// what belongs to it does not fit.
void fill_from_h5(const std::filesystem::path& path, RotationPart& set);
void fill_from_safetensors(const std::filesystem::path& path, RotationPart& set);

/// Both list what in a file beside a manifest does not follow from `set`.
[[nodiscard]] std::vector<std::string> h5_disagreements(const std::filesystem::path& path, const RotationPart& set);
[[nodiscard]] std::vector<std::string> safetensors_disagreements(const std::filesystem::path& path,
                                                                 const RotationPart& set);

/// Reads a set from one file. Throws DataError: not a set, or one that does not fit together.
[[nodiscard]] RotationPart read_set_file(const std::filesystem::path& path, SetFileKind kind);

}  // namespace oscar
