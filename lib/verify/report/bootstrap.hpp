// SPDX-License-Identifier: MIT
// How far a figure might have come out otherwise with other sequences of the same kind: percentile bootstrap (Efron).
// Sequences are drawn with replacement, as many as there are; tokens of one sequence depend on each other and stay
// together. The draws are the same for every figure and method of as many sequences, and in every run.
#pragma once

#include <optional>
#include <span>

namespace oscar::verify {

/// Holds 95 % of the resampled figures.
struct Interval {
  double low = 0, high = 0;
};

/// Returns the interval of sum(numerators) / sum(denominators); one of each a sequence, of equal number. None for fewer
/// than two sequences, or if some draw's denominators add up to nothing.
[[nodiscard]] std::optional<Interval> bootstrap(std::span<const double> numerators,
                                                std::span<const double> denominators);

}  // namespace oscar::verify
