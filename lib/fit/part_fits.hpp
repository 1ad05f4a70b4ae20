// SPDX-License-Identifier: MIT
// The parts of a set. Of the coded cache: the basis in which what errors cost adds up, and bits where they take away
// most of it (coded_fit.cpp). Of rotations: eigenproblems of the sums of each layer, and clip ratios by what they do to
// its samples (rotation_fit.cpp).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/status.hpp"
#include "fit/options.hpp"
#include "kernels/backend.hpp"
#include "method/coded_levels.hpp"
#include "moments/statistics.hpp"
#include "set/coded_part.hpp"
#include "set/rotation_part.hpp"

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

/// What the statistics lack for a recipe, "no sums of ktk in layer 3"; empty: nothing.
[[nodiscard]] std::string lacking(const Statistics& statistics, const Recipe& recipe);

/// options: those of all rotations, and the name of the recipe. Throws DataError if no sequence was longer than the
/// windows where fisher is needed, NumericalError if bfloat16 would spoil a stretch.
[[nodiscard]] RotationPart fit_rotations(const Statistics& statistics, const Recipe& recipe, const FitOptions& options,
                                         Backend& backend, Status& status);

/// The layer in which the mean key has the largest share of the energy of keys, |mean|^2 / mean |k|^2: what rotations
/// without means have to quantise beside what keys tell apart.
/// Its id and that share, of the rows that are kept; nothing if there are none.
[[nodiscard]] std::optional<std::pair<int, double>> largest_mean_key(const Statistics& statistics);

}  // namespace oscar
