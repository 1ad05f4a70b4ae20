// SPDX-License-Identifier: MIT
// Counts of positive numbers in logarithmic bins of 1 %: quantiles to half a per cent, mergeable, of constant size
// however many queries a dump has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace oscar::verify {

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

}  // namespace oscar::verify
