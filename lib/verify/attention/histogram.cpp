// SPDX-License-Identifier: MIT
#include "verify/attention/histogram.hpp"

#include <algorithm>
#include <cmath>

namespace oscar::verify {
namespace {

constexpr double kLowest = 1e-12, kHighest = 1e4, kBinsPerFactorE = 100;

std::size_t num_bins() { return static_cast<std::size_t>(std::log(kHighest / kLowest) * kBinsPerFactorE) + 2; }

}  // namespace

void LogHistogram::add(std::span<const double> values) {
  counts_.resize(num_bins());
  for (const double value : values) {
    std::size_t bin = 0;
    if (value >= kLowest) {
      const double position = std::log(std::min(value, kHighest) / kLowest) * kBinsPerFactorE;
      bin = std::min(counts_.size() - 1, static_cast<std::size_t>(position) + 1);
    }
    ++counts_[bin];
  }
  total_ += static_cast<std::int64_t>(values.size());
}

void LogHistogram::add(const LogHistogram& other) {
  counts_.resize(num_bins());
  for (std::size_t i = 0; i < other.counts_.size(); ++i) counts_[i] += other.counts_[i];
  total_ += other.total_;
}

double LogHistogram::quantile(double fraction) const {
  const auto needed = static_cast<std::int64_t>(std::ceil(fraction * static_cast<double>(total_)));
  std::int64_t seen = 0;
  for (std::size_t bin = 0; bin < counts_.size(); ++bin) {
    seen += counts_[bin];
    if (seen < needed || seen == 0) continue;
    return bin == 0 ? 0.0 : kLowest * std::exp((static_cast<double>(bin) - 0.5) / kBinsPerFactorE);
  }
  return 0;
}

}  // namespace oscar::verify
