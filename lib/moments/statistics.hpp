// SPDX-License-Identifier: MIT
// All that a fit takes from its data: "oscar.statistics.v1", a safetensors file with tensors "layer_<id>.<name>" and a
// manifest of what they were taken of. Sets of any recipe that these suffice for, and of any number of bits, are fitted
// to it without another look at the data. For layer N there are, all but sums of some kind optional,
//   layer_N.<moment>.sums, .total, layer_N.fisher.*, layer_N.keys.*   sums over tokens, float64 (moments/sums.hpp)
//   layer_N.cost.key (Hkv, d, d), .value (Hkv, d_v, d_v)              what errors cost a model, float64
//   layer_N.key.rows (Hkv, n, d), .value.rows (Hkv, n, d_v)           rows of tokens that are spread evenly, float32
//   layer_N.fisher.base_*                                             of keys before RoPE, of queries without a cost
//   layer_N.before_rope.rows (Hkv, n, d)                              keys of the history before RoPE, float32
//   layer_N.clip.<i>.q, .k, .v, .positions                            sequences on which clip ratios are judged
// Statistics of parts of the data, or of different layers, add up to
// those of the whole: sums add; costs and damage are means over tokens; of the rows those stay that have one density
// over all of the data; samples are joined within their limits. Value moments by attention scores ("sst") weigh values
// by the query moments of all of the data, so that those of parts do not add up: a sum of parts has none, and who needs
// them takes them of the rows.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "base/json.hpp"
#include "kernels/rotary.hpp"
#include "model/config/identity.hpp"
#include "moments/sample.hpp"
#include "moments/sums.hpp"

namespace oscar {

/// C = 1 / (2 T) sum over rows of g^T g, with the gradients g of history_gradients() (model/run/runner.hpp) and T
/// tokens; the mean over draws. Of a layer with LayerStatistics::rotary g is by keys before RoPE. Errors e of the rows,
/// independent of each other, cost about mean(e C e^T) nats of KL a token.
struct ErrorCost {
  MatrixStack key, value;  // (Hkv, d, d), (Hkv, d_v, d_v)
};

/// What errors of 2-bit codes of the keys, and of the values, did to attention outputs in a trial.
struct ErrorDamage {
  double key = 0, value = 0;
};

struct LayerStatistics {
  int layer_id = 0, key_dim = 0, value_dim = 0;
  AdditiveMoments first;
  std::optional<MomentSums> sst;
  /// Places in Statistics::data of what they were taken of; ascending.
  std::vector<std::size_t> first_data;
  std::optional<ErrorCost> cost;      // none: no model was asked
  std::optional<ErrorDamage> damage;  // only where there is no cost
  /// False: keys keep their mean, because a shift of all scores changes what their softmax gives (sinks, soft caps).
  bool centred = true;
  std::vector<std::vector<float>> key_rows, value_rows;  // [KV head] (n, d), in native coordinates; empty: not kept
  /// Where the coded cache stores keys before RoPE: how they are turned, and rows behind the sink, turned back.
  std::optional<Rotary> rotary;
  std::vector<std::vector<float>> keys_before_rope;  // [KV head] (n, d)
  std::vector<SampledSequence> sample;               // for clip ratios
};

/// The KV heads [first, first + count) of a model that has `total`, as a tensor-parallel rank holds them.
struct HeadRange {
  int first = 0, count = 0, total = 0;
  [[nodiscard]] bool whole() const { return count == total; }
};
/// Throws DataError for sums of some ranks of a server alone.
void require_all_heads(const HeadRange& heads);

struct Statistics {
  ModelIdentity model;
  std::vector<CalibrationData> data;
  Windows windows;                      // of fisher, costs and samples
  std::vector<LayerStatistics> layers;  // ascending
  HeadRange heads;
  /// How they were taken, as a set records it: the same in all parts, but for damage_tokens. Empty: nobody says.
  Json recipe = Json::object();
  /// How LayerStatistics::sample was drawn; none: it was not.
  std::optional<SampleOptions> clip;
};

/// Parts of the data as one, whatever their order. At least one.
[[nodiscard]] CalibrationData calibration_of(std::vector<CalibrationData> parts);

/// Writes a file with checksums (tensor/safetensors.hpp).
void write_statistics(const std::filesystem::path& path, const Statistics& statistics);

/// The sum over files, in an order that their contents decide; a folder stands for the moments of all ranks of a server
/// in it (dump/server_file.hpp). Throws DataError that names the files and what differs:
/// model, revision, windows, how and which sums were taken, the same data or texts twice, or shards of tensor-parallel
/// ranks that do not join; or the tensor whose checksum is another, or which is no sum over rows.
[[nodiscard]] Statistics read_statistics(const std::vector<std::filesystem::path>& paths);

}  // namespace oscar
