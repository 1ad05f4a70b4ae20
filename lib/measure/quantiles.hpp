// SPDX-License-Identifier: MIT
// Quantiles of figures, and how far a figure might have come out otherwise with other sequences of the same kind.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace oscar {

/// The value below which `fraction` of the sorted values lie, linearly between neighbours; 0 of none.
[[nodiscard]] double quantile(std::span<const double> sorted, double fraction);

/// Counts of positive numbers in logarithmic bins of 1 %: quantiles to half a per cent, mergeable, of constant size
/// however many queries a dump has.
class LogHistogram {
 public:
  void add(std::span<const double> values);
  void add(const LogHistogram& other);
  /// The smallest bin centre that at least `fraction` of the values do not exceed; 0 without values. Values below 1e-12
  /// are 0.
  [[nodiscard]] double quantile(double fraction) const;

 private:
  std::vector<std::int64_t> counts_;  // bin 0: below 1e-12
  std::int64_t total_ = 0;
};

/// Holds 95 % of the resampled figures.
struct Interval {
  double low = 0, high = 0;
};

/// Percentile bootstrap (Efron): sequences are drawn with replacement, as many as there are; tokens of one sequence
/// depend on each other and stay together. The draws are the same for every figure and method of as many sequences, and
/// in every run. Returns the interval of sum(numerators) / sum(denominators); one of each a sequence, of equal number.
/// None for fewer than two sequences, or if some draw's denominators add up to nothing.
[[nodiscard]] std::optional<Interval> bootstrap(std::span<const double> numerators,
                                                std::span<const double> denominators);

}  // namespace oscar
