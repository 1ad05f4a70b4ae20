// SPDX-License-Identifier: MIT
// The fit of the coded cache: ask what errors of keys and values cost, take the sums of every layer, find the basis in
// which these costs add up, and spend bits where they take away most of them.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "coded/coded_set.hpp"
#include "dump/source.hpp"
#include "fit/coded_layer.hpp"
#include "fit/kept_layers.hpp"
#include "kernels/backend.hpp"

namespace oscar {

/// Tells what errors of a set of one layer cost, which has the same bits everywhere: where no model is at hand that
/// knows. An empty function plans as if all errors cost the same.
using MeasureDamage = std::function<CodedDamage(const CodedSet&)>;

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
[[nodiscard]] CodedSet fit_coded(const CodedData& data, double bits, CodedScope scope, Backend& backend);

}  // namespace oscar
