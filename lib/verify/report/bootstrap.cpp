// SPDX-License-Identifier: MIT
#include "verify/report/bootstrap.hpp"

#include <algorithm>
#include <random>
#include <vector>

#include "base/check.hpp"

namespace oscar::verify {
namespace {

constexpr std::size_t kResamples = 1000;
constexpr std::uint64_t kSeed = 20757;
constexpr double kTail = 0.025;

}  // namespace

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
    if (denominator <= 0) return std::nullopt;
    figures.push_back(numerator / denominator);
  }
  std::sort(figures.begin(), figures.end());
  const auto tail = static_cast<std::size_t>(kTail * static_cast<double>(kResamples));
  return Interval{figures[tail], figures[kResamples - 1 - tail]};
}

}  // namespace oscar::verify
