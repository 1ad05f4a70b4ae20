// SPDX-License-Identifier: MIT
// What a fit of the coded cache took from its data, in a file: "oscar.coded_statistics.v1", safetensors with checksums.
// The metadata "manifest" says what it was taken of; for layer N and side key or value there are
//   layers.N.SIDE.write, .read   (Hkv, d, d) float64: the basis, before levels are planned
//   layers.N.key.mean            (Hkv, d) float64; left out: keys are not centred
//   layers.N.SIDE.lambda         (Hkv, d) float64: variances, descending in each head
//   layers.N.SIDE.rows           (Hkv, n, d) float32: the sample that grids are fitted to, in native coordinates
// A set that is fitted from the file has the bytes of one that is fitted from the data. Non-goals: files do not add up,
// since each has bases of its own.
#pragma once

#include <filesystem>

#include "fit/coded_fit.hpp"

namespace oscar {

inline constexpr const char* kCodedDataSchema = "oscar.coded_statistics.v1";

void write_coded_data(const std::filesystem::path& path, const CodedData& data);

/// Throws DataError: another file, tensors that are missing, of another shape or not finite, variances that are
/// negative or out of order, or a checksum that is another.
[[nodiscard]] CodedData read_coded_data(const std::filesystem::path& path);

/// Whether it is a file of this kind.
[[nodiscard]] bool is_coded_data(const std::filesystem::path& path);

}  // namespace oscar
