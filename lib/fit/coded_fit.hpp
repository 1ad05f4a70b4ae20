// SPDX-License-Identifier: MIT
// The fit of the coded cache: take the moments of every layer, find the basis in which attention's errors add up, ask
// what errors of each side cost the model, and spend bits where they take away most of that.
#pragma once

#include <functional>
#include <vector>

#include "base/status.hpp"
#include "coded/coded_set.hpp"
#include "dump/source.hpp"
#include "fit/coded_layer.hpp"
#include "kernels/backend.hpp"

namespace oscar {

/// Measures a set, layer by layer in its order. An empty function plans as if all errors cost the same.
using MeasureDamage = std::function<std::vector<CodedDamage>(const CodedSet&, CodedBeside)>;

/// Throws UsageError for bits that cannot be spent, DataError for data that is too short or heads that do not fit, and
/// NumericalError for rows that do not vary.
[[nodiscard]] CodedSet fit_coded(QkvSource& source, const CodedOptions& options, const OutputProjection& projection,
                                 const MeasureDamage& measure, Backend& backend, Status& status);

}  // namespace oscar
