// SPDX-License-Identifier: MIT
// What a fit of the coded cache takes from one layer's data, what errors of keys and values cost a model, and what
// becomes of it: a basis, and once levels are planned, the formats of rows.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "coded/coded_set.hpp"
#include "dump/source.hpp"
#include "kernels/backend.hpp"
#include "method/coded_basis.hpp"
#include "method/coded_levels.hpp"
#include "method/coded_side.hpp"
#include "model/run/runner.hpp"
#include "moments/statistics.hpp"

namespace oscar {

/// C = 1 / (2 T) sum over rows of g^T g, with the gradients g of history_gradients() (model/run/runner.hpp) and T
/// tokens; the mean over draws. Errors e of the rows, independent of each other, cost about mean(e C e^T) nats of KL a
/// token.
struct ErrorCost {
  MatrixStack key, value;  // (Hkv, d, d), (Hkv, d_v, d_v)
};

/// Returns the cost in each of `layers`, which have caches. Layers that read another's cache add to that one's, as if
/// what they read of a row had nothing to do with each other. The bytes do not depend on the number of threads.
[[nodiscard]] std::map<int, ErrorCost> error_costs(ModelRunner& runner, const HistoryQuestion& question,
                                                   std::span<const int> layers, Backend& backend, Status& status);

/// All that is taken of a layer. Sums add up over parts of the data; costs and damage are means over its tokens.
struct CodedLayerData {
  /// The sums qqt, vtv, and fisher with values; beside them CodedOptions::more, which files do not keep.
  LayerStatistics sums;
  std::optional<ErrorCost> cost;  // none: no model was asked
  /// What errors of 2-bit codes cost, in a trial set that is fitted to the same data; only where there is no cost.
  std::optional<CodedDamage> damage;
  /// False: keys keep their mean, because a shift of all scores changes what their softmax gives (sinks, soft caps).
  bool centred = true;
  /// Rows of tokens that are spread evenly over the data: [KV head] (n, d) in native coordinates.
  std::vector<std::vector<float>> key_rows, value_rows;
};

/// How a layer is taken.
struct CodedOptions {
  Windows windows;
  std::int64_t sample_rows = 4096;  // of each layer, from which grids are fitted
  std::set<int> uncentred;          // layers whose keys keep their mean
  std::set<Moment> more;            // moments that somebody else needs of the same rows
  Json recipe = Json::object();     // CodedData::recipe
};

/// Reads a layer for its sums, and for `options.sample_rows` rows, which of a shared text only the process gets that
/// fits the layer. cost: of its rows; null: nobody knows it. Throws DataError if no sequence is longer than the windows
/// or head sizes are no multiples of 8.
[[nodiscard]] CodedLayerData take_coded_layer(int layer_id, LayerStream& stream, const CodedOptions& options,
                                              const ErrorCost* cost, Backend& backend);

/// Returns how many tokens the layer's data has.
[[nodiscard]] std::int64_t tokens_of(const CodedLayerData& data);

/// The bases that the data ask for: of keys and of values. Without a cost a key's error counts as the softmax feels it,
/// and a value's by its square.
struct CodedBases {
  CodedBasis key, value;
};
[[nodiscard]] CodedBases bases_of(const CodedLayerData& data, Backend& backend);

/// The spectrum that levels of one side are planned by.
[[nodiscard]] CodedSpectrum spectrum_of(const CodedBasis& basis, int layer_id, const std::string& side, double weight);

}  // namespace oscar
