// SPDX-License-Identifier: MIT
// What one query tells of attention over a mixed-precision cache beside exact attention, in fp64. Spans of scores and
// probabilities have the keys that the query sees. Sums over keys run in strands (kernels/arguments.hpp).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/types.hpp"

namespace oscar::cpu {

struct Softmax {
  double highest = 0, log_sum = 0;  // log p = score - highest - log_sum
};

/// What exact attention of a query tells, whatever is compared with it.
struct ExactRow {
  Softmax softmax;
  double score_norm = 0;             // sum of (s - mean s)^2
  std::vector<std::size_t> needles;  // keys with p >= kNeedleShare, those in windows included
};

/// Fills `probabilities` from exact scores.
[[nodiscard]] ExactRow exact_row(std::span<const double> scores, std::span<double> probabilities);

/// Adds to `errors` what the scores of a query tell, and turns approximate scores into probabilities, in place.
void compare_row(const ExactRow& row, std::span<const double> scores, std::span<const double> probabilities,
                 std::span<double> approximate, const Windows& windows, std::vector<double>& scratch,
                 AttentionErrors& errors);

/// Adds to `errors` what the outputs (d_v) of a query tell.
void compare_output(std::span<const double> exact, std::span<const double> approximate, AttentionErrors& errors);

}  // namespace oscar::cpu
