// SPDX-License-Identifier: MIT
// Moments that outlive a run: "oscar.statistics.v1", a safetensors file with the tensors "layer_<id>.<name>.<part>" in
// fp64 and a manifest of what they were taken of. Statistics of parts of the data, or of different layers, add up to
// those of the whole. Value moments by attention scores ("sst") weigh values by the query moments of all of the data:
// they are a second pass over each part, and belong to the first pass whose query moments they name.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/config/identity.hpp"
#include "moments/take.hpp"

namespace oscar {

struct LayerStatistics {
  int layer_id = 0, key_dim = 0, value_dim = 0;
  AdditiveMoments first;
  std::optional<MomentSums> sst;
  /// Places in Statistics::data of what `first`, and what `sst`, was taken of; ascending.
  std::vector<std::size_t> first_data, sst_data;
};

/// The KV heads [first, first + count) of a model that has `total`, as a tensor-parallel rank holds them.
struct HeadRange {
  int first = 0, count = 0, total = 0;
  [[nodiscard]] bool whole() const { return count == total; }
};

/// Rows of each layer, drawn uniformly as they passed by, that stood in for a second pass over the data.
struct RowSample {
  std::int64_t tokens = 0;  // at most
  std::uint64_t seed = 0;
};

struct Statistics {
  ModelIdentity model;
  std::vector<CalibrationData> data;
  Windows windows;  // of fisher
  /// The hash of the query moments that sst was weighted by; empty if there is no sst.
  std::string query_moments_sha256;
  std::vector<LayerStatistics> layers;  // ascending
  HeadRange heads;
  /// Where sst came from; none: from all rows.
  std::optional<RowSample> sample;
  /// Layers that a fit must find here, whoever took them; empty: not known.
  std::vector<int> expected_layers;
};

/// Parts of the data as one. At least one.
[[nodiscard]] CalibrationData calibration_of(const std::vector<CalibrationData>& parts);

/// SHA-256 of the query moments of all layers.
[[nodiscard]] std::string query_moments_sha256(const Statistics& statistics);

/// Writes a file with checksums (tensor/safetensors.hpp).
void write_statistics(const std::filesystem::path& path, const Statistics& statistics);

/// The sum over files, in an order that their contents decide. Throws DataError that names the files and what differs:
/// model, revision, windows, which sums were taken, query moments of the second pass, the same data twice, or shards
/// of tensor-parallel ranks that do not join; or the tensor whose checksum is another, or which is no sum over rows.
[[nodiscard]] Statistics read_statistics(const std::vector<std::filesystem::path>& paths);

}  // namespace oscar
