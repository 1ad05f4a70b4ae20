// SPDX-License-Identifier: MIT
// The fit of the coded cache: ask what errors of keys and values cost, take the moments of every layer, find the basis
// in which these costs add up, and spend bits where they take away most of them.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "base/status.hpp"
#include "coded/coded_set.hpp"
#include "dump/source.hpp"
#include "fit/coded_layer.hpp"
#include "kernels/backend.hpp"

namespace oscar {

/// Tells what errors of a set that has the same bits everywhere cost, layer by layer in its order: where no model is at
/// hand that knows. An empty function plans as if all errors cost the same.
using MeasureDamage = std::function<std::vector<CodedDamage>(const CodedSet&)>;

/// All that a fit takes from its data: other bits, or another scope, need no second look at it.
struct CodedData {
  ModelIdentity model;
  CalibrationData calibration;
  Windows windows;
  std::vector<CodedLayerData> layers;
  /// What errors of 1 cost, of keys and of values, layer by layer: ratios weigh layers and sides against each other.
  std::vector<CodedDamage> weights;
  /// How it was taken: recorded in the set, not interpreted.
  Json recipe = Json::object();
};

/// costs: of every layer; empty: `measure` weighs layers and sides against each other instead. Throws DataError for
/// data that is too short or heads that do not fit, and NumericalError for rows that do not vary or costs that are no
/// numbers.
[[nodiscard]] CodedData take_coded_data(QkvSource& source, const CodedOptions& options,
                                        const std::map<int, ErrorCost>& costs, const MeasureDamage& measure,
                                        Backend& backend, Status& status);

/// Spends the bits. Throws UsageError for bits that cannot be spent, DataError for a head that gets none.
[[nodiscard]] CodedSet fit_coded(const CodedData& data, double bits, CodedScope scope);

}  // namespace oscar
