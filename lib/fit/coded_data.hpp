// SPDX-License-Identifier: MIT
// What fits of the coded cache took from their data: in files, added up, and kept until a set is written. A file is
// "oscar.coded_statistics.v1", safetensors with checksums. The metadata "manifest" says what it was taken of; for layer
// N there are, in float64 but for the rows,
//   layers.N.qqt.sums (Hkv, d, d), .total (Hkv)             second moments of queries: a sum, and of how many
//   layers.N.vtv.sums (Hkv, d_v, d_v), .total (Hkv)         those of values
//   layers.N.fisher.query, .key (Hkv, d, d), .key_sum (Hkv, d), .weight (Hkv), .value (Hkv, d_v, d_v)   FisherSums
//   layers.N.cost.key (Hkv, d, d), .value (Hkv, d_v, d_v)   ErrorCost; left out: no model was asked
//   layers.N.key.rows (Hkv, n, d), .value.rows (Hkv, n, d_v) float32: the rows that grids are fitted to
// A set that is fitted from the file has the bytes of one that is fitted from the data. Files of parts of the data add
// up to one of the whole: sums add up; what errors cost is a mean over tokens, in which parts count by the tokens of
// their data, however many of them the model was asked about, and so is what errors of a trial cost, where there is no
// model, though each part had a trial of its own; of the rows those stay that have one density over all of the data.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fit/coded_fit.hpp"
#include "fit/kept_layers.hpp"

namespace oscar {

inline constexpr const char* kCodedDataSchema = "oscar.coded_statistics.v1";

void write_coded_data(const std::filesystem::path& path, const CodedData& data);

/// Reads one file, or the sum of several, in an order that their contents decide. Throws DataError: another file,
/// tensors that are missing or of another shape, sums that no rows have (moments/statistics_file.hpp), costs that are
/// not finite, a checksum that is another; and what merge_coded_data() throws, with the files' names.
[[nodiscard]] CodedData read_coded_data(const std::vector<std::filesystem::path>& paths);

/// Whether it is a file of this kind.
[[nodiscard]] bool is_coded_data(const std::filesystem::path& path);

/// A part, and its name for errors.
struct CodedDataPart {
  std::string name;
  CodedData data;
};

/// Adds them up in the order of their data's hashes. At least one. Throws DataError that names two parts and what
/// differs: models, windows, how they were taken, layers, heads; or the same data twice.
[[nodiscard]] CodedData merge_coded_data(std::vector<CodedDataPart> parts);

/// Returns all that decides what is taken; bits and scopes do not. recipe: CodedData::recipe.
[[nodiscard]] Json describe_coded_data(const QkvSource& source, Windows windows, const Json& recipe);

/// Returns a keeper of layers. about: what they are taken of.
[[nodiscard]] KeptLayers<CodedLayerData> kept_coded(const PartialFolder* folder, CodedData about);

/// Returns the costs that are kept, or what `ask` returns, which is kept then in a file that PartialFolder checks and
/// takes away as it does layers.
[[nodiscard]] std::map<int, ErrorCost> kept_costs(const PartialFolder& folder,
                                                  const std::function<std::map<int, ErrorCost>()>& ask);

}  // namespace oscar
