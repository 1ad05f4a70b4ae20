// SPDX-License-Identifier: MIT
// A coded set in a folder: manifest.json, and coded.safetensors with, for layer N and side key or value,
//   layers.N.SIDE.write   (Hkv, d, d) float32: y = (x - mean) write
//   layers.N.SIDE.read    (Hkv, d, d) float32: q read, or o = o' read^T
//   layers.N.key.mean     (Hkv, d) float32; zeros: keys are not centred
//   layers.N.SIDE.levels  (Hkv, d) int32; .step, .sigma (Hkv, d) float32: see kernels/reference/coded_row.hpp
//   layers.N.SIDE.lambda  (Hkv, d) float32: variances, for reports
#pragma once

#include <filesystem>

#include "coded/coded_set.hpp"

namespace oscar {

/// Writes the folder whole or not at all. replace: a folder that holds a set of ours and nothing else may be there.
void write_coded_set(const std::filesystem::path& folder, const CodedSet& set, bool replace);

/// Reads a coded set. Throws DataError: not a coded set, files of other bytes than the manifest lists, tensors that are
/// missing, of another shape or not finite, or formats that cannot be packed.
[[nodiscard]] CodedSet read_coded_set(const std::filesystem::path& folder);

/// Throws DataError unless the folder holds a set of either kind, of rotations or of the coded cache, whose files are
/// whole and say one thing.
void require_sound_set_of_any_kind(const std::filesystem::path& folder);

}  // namespace oscar
