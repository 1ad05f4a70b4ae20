// SPDX-License-Identifier: MIT
// The fit of the coded cache: ask what errors of keys and values cost, take the sums of every layer, find the basis in
// which these costs add up, and spend bits where they take away most of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "set/coded_part.hpp"
#include "dump/source.hpp"
#include "fit/kept_layers.hpp"
#include "kernels/backend.hpp"
#include "method/coded_basis.hpp"
#include "method/coded_levels.hpp"
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

/// Returns how many tokens the layer's data has.
[[nodiscard]] std::int64_t tokens_of(const CodedLayerData& data);

/// Tells what errors of a set of one layer cost, which has the same bits everywhere: where no model is at hand that
/// knows. An empty function plans as if all errors cost the same.
using MeasureDamage = std::function<CodedDamage(const CodedPart&)>;

/// All that a fit takes from its data: other bits, or another scope, need no second look at it.
struct CodedData {
  ModelIdentity model;
  std::vector<CalibrationData> data;  // of all layers
  Windows windows;
  std::vector<CodedLayerData> layers;  // ascending
  /// How it was taken, as the set records it; has sample_rows and damage_tokens where parts are to be merged.
  Json recipe = Json::object();
};

/// What errors cost in every layer; empty where nobody knows.
using ErrorCosts = std::map<int, ErrorCost>;

/// Takes what a fit needs of the layers of a source. measure: weighs layers and sides against each other where no costs
/// are known. folder: where layers that are there already are taken from, and the others kept; or null. Throws
/// DataError for data that is too short or heads that do not fit, and NumericalError for costs that are no numbers.
[[nodiscard]] CodedData take_coded_data(QkvSource& source, const CodedOptions& options, const ErrorCosts& costs,
                                        const MeasureDamage& measure, const PartialFolder* folder, Backend& backend,
                                        Status& status);

/// Spends the bits. Throws UsageError for bits that cannot be spent, DataError for a head that gets none,
/// NumericalError for rows that do not vary.
[[nodiscard]] CodedPart fit_coded(const CodedData& data, double bits, CodedScope scope, Backend& backend);

}  // namespace oscar
