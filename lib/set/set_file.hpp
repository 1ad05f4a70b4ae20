// SPDX-License-Identifier: MIT
// Rotations in one file, HDF5 or safetensors, as named tensors layers.<id>.{key,value}.{rotation,
// q_rotation|o_rotation, mean, eigenvalues, covariance, query_covariance}, float32; of HDF5 in groups,
// "/layers/<id>/key/mean". In a set's folder rotations.h5 stands beside manifest.json, which lists its hash. A file
// that stands alone has a manifest of its own (a dataset "manifest" of bytes, the metadata "manifest"), so that nothing
// is lost.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "set/set.hpp"

namespace oscar {

/// Of each part with rotations, in its folder.
inline constexpr const char* kPartFile = "rotations.h5";

/// Throws DataError if a matrix, a mean or an eigenvalue is not finite as float32, which is how sets are written, or if
/// a rotation has entries beyond 1e6, which none that keeps scores has.
void require_finite(const RotationPart& part, const std::string& where);

void write_part_h5(const std::filesystem::path& path, const RotationPart& part);
/// Fills the matrices of the layers that `part` lists (by layer_id). Throws DataError if a rotation is missing or what
/// belongs to it does not fit.
void fill_from_h5(const std::filesystem::path& path, RotationPart& part);
/// Lists what in the file does not follow from `part`, which was filled from it.
[[nodiscard]] std::vector<std::string> h5_disagreements(const std::filesystem::path& path, const RotationPart& part);

enum class SetFileKind { kH5, kSafetensors };
/// A file that stands alone, of a set's only part.
void write_set_file(const std::filesystem::path& path, SetFileKind kind, const Set& set);
/// Reads a file that stands alone. Throws DataError: no rotations, or what does not fit together.
[[nodiscard]] Set read_set_file(const std::filesystem::path& path, SetFileKind kind);

}  // namespace oscar
