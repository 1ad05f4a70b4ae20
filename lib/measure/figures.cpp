// SPDX-License-Identifier: MIT
#include "measure/figures.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/errors.hpp"

namespace oscar {
namespace {

constexpr double kLowest = 1e-12, kHighest = 1e4, kBinsPerFactorE = 100;

std::size_t num_bins() { return static_cast<std::size_t>(std::log(kHighest / kLowest) * kBinsPerFactorE) + 2; }

constexpr std::size_t kResamples = 1000;
constexpr std::uint64_t kSeed = 20757;
constexpr double kTail = 0.025;

}  // namespace

double quantile(std::span<const double> sorted, double fraction) {
  if (sorted.empty()) return 0;
  const double place = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const double rest = place - static_cast<double>(below);
  return (1 - rest) * sorted[below] + rest * sorted[std::min(below + 1, sorted.size() - 1)];
}

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

std::optional<Interval> bootstrap(std::span<const double> numerators, std::span<const double> denominators) {
  OSCAR_CHECK(numerators.size() == denominators.size());
  const std::size_t count = numerators.size();
  if (count < 2) return std::nullopt;
  std::mt19937_64 random(kSeed);
  std::vector<double> figures;
  for (std::size_t i = 0; i < kResamples; ++i) {
    double numerator = 0, denominator = 0;
    for (std::size_t draw = 0; draw < count; ++draw) {
      const std::size_t sequence = random() % count;
      numerator += numerators[sequence];
      denominator += denominators[sequence];
    }
    figures.push_back(numerator / denominator);
    if (denominator <= 0 || !std::isfinite(figures.back())) return std::nullopt;
  }
  std::sort(figures.begin(), figures.end());
  const auto tail = static_cast<std::size_t>(kTail * static_cast<double>(kResamples));
  return Interval{figures[tail], figures[kResamples - 1 - tail]};
}

}  // namespace oscar
