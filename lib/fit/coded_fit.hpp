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

/// costs: of every layer; empty: `measure` weighs layers and sides against each other instead. Throws UsageError for
/// bits that cannot be spent, DataError for data that is too short or heads that do not fit, and NumericalError for
/// rows that do not vary or costs that are no numbers.
[[nodiscard]] CodedSet fit_coded(QkvSource& source, const CodedOptions& options, const std::map<int, ErrorCost>& costs,
                                 const MeasureDamage& measure, Backend& backend, Status& status);

}  // namespace oscar
