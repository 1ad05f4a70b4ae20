// SPDX-License-Identifier: MIT
// What fits of the coded cache took from their data, in files: "oscar.coded_statistics.v1", safetensors with checksums.
// The metadata "manifest" says what they were taken of; for layer N there are, in float64 but for the rows,
//   layers.N.qqt.sums (Hkv, d, d), .total (Hkv)             second moments of queries: a sum, and of how many
//   layers.N.vtv.sums (Hkv, d_v, d_v), .total (Hkv)         those of values
//   layers.N.fisher.query, .key (Hkv, d, d), .key_sum (Hkv, d), .weight (Hkv), .value (Hkv, d_v, d_v)   FisherSums
//   layers.N.cost.key (Hkv, d, d), .value (Hkv, d_v, d_v)   ErrorCost; left out: no model was asked
//   layers.N.key.rows (Hkv, n, d), .value.rows (Hkv, n, d_v) float32: the rows that grids are fitted to
// A set that is fitted from the file has the bytes of one that is fitted from the data. Files of parts of the data add
// up to one of the whole (merge_coded_data()).
#pragma once

#include <filesystem>
#include <vector>

#include "fit/coded_fit.hpp"

namespace oscar {

inline constexpr const char* kCodedDataSchema = "oscar.coded_statistics.v1";

void write_coded_data(const std::filesystem::path& path, const CodedData& data);

/// Reads one file, or the sum of several, in an order that their contents decide. Throws DataError: another file,
/// tensors that are missing or of another shape, sums that no rows have (moments/statistics_file.hpp), costs that are
/// not finite, a checksum that is another; and what merge_coded_data() throws, with the files' names.
[[nodiscard]] CodedData read_coded_data(const std::vector<std::filesystem::path>& paths);

/// Whether it is a file of this kind.
[[nodiscard]] bool is_coded_data(const std::filesystem::path& path);

}  // namespace oscar
