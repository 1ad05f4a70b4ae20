// SPDX-License-Identifier: MIT
// The coded cache of a set: the basis in which what errors cost adds up, and bits where they take away most of it.
#pragma once

#include <functional>

#include "kernels/backend.hpp"
#include "method/coded_levels.hpp"
#include "moments/statistics.hpp"
#include "set/coded_part.hpp"

namespace oscar {

/// Tells what errors of a part of one layer cost, which has the same bits everywhere: where no model is at hand that
/// knows. An empty function plans as if all errors cost the same.
using MeasureDamage = std::function<CodedDamage(const CodedPart&)>;

/// Measures a trial that is fitted to the layer. context: how far apart queries and keys are, at most. Throws
/// NumericalError if it is not a finite number.
[[nodiscard]] ErrorDamage damage_of(const LayerStatistics& layer, Windows windows, std::int64_t context,
                                    const MeasureDamage& measure, Backend& backend);
/// Returns that of data: over which its texts were spread (`recipe`, Statistics::recipe), or their mean length.
[[nodiscard]] std::int64_t context_of(const Json& recipe, const CalibrationData& data);
/// Spends the bits on layers with sums of fisher (with values), qqt and vtv, and rows. Throws UsageError for bits that
/// cannot be spent, DataError for a head that gets none, NumericalError for rows that do not vary.
[[nodiscard]] CodedPart fit_coded(const Statistics& statistics, double bits, CodedScope scope, Backend& backend);

}  // namespace oscar
