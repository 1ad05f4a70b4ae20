// SPDX-License-Identifier: MIT
// The rotations of a set: eigenproblems of the sums of each layer, and clip ratios by what they do to its samples.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/status.hpp"
#include "fit/options.hpp"
#include "kernels/backend.hpp"
#include "moments/statistics.hpp"
#include "set/rotation_part.hpp"

namespace oscar {

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
