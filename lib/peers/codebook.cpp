// SPDX-License-Identifier: MIT
#include "peers/codebook.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.hpp"
#include "base/vector_clones.hpp"

namespace oscar::methods {
namespace {

constexpr int kMaxIterations = 5000;
constexpr double kSettled = 1e-9;

/// Moves every level to the mean of its cell until they stay. mean(low, high): of the values in [low, high), if any.
void iterate(std::vector<double>& levels, const std::function<std::optional<double>(double, double)>& mean) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double change = 1;
  for (int round = 0; round < kMaxIterations && change > kSettled; ++round) {
    const std::vector<double> before = levels;
    change = 0;
    for (std::size_t i = 0; i < levels.size(); ++i) {
      const double low = i == 0 ? -kInfinity : (before[i - 1] + before[i]) / 2;
      const double high = i + 1 == levels.size() ? kInfinity : (before[i] + before[i + 1]) / 2;
      levels[i] = mean(low, high).value_or(before[i]);
      change = std::max(change, std::abs(levels[i] - before[i]));
    }
  }
}

double density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * M_PI); }
double probability_below(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }

Codebook fitted_to_gaussian(int bits) {
  const int count = 1 << bits;
  std::vector<double> levels(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) levels[static_cast<std::size_t>(i)] = (i + 0.5) * 6 / count - 3;
  iterate(levels, [](double low, double high) {
    return (density(low) - density(high)) / (probability_below(high) - probability_below(low));
  });
  return codebook_of(levels);
}

OSCAR_VECTOR_CLONES void take_levels(const Codebook& book, float* x, std::size_t count) {
  constexpr std::size_t kBlock = 64;
  std::array<float, kBlock> level;
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    level.fill(book.levels[0]);
    for (std::size_t b = 0; b < book.bounds.size(); ++b) {
      const float bound = book.bounds[b], above = book.levels[b + 1];
      for (std::size_t i = 0; i < kBlock && i < size; ++i) level[i] = bound <= x[begin + i] ? above : level[i];
    }
    std::copy_n(level.begin(), size, x + begin);
  }
}

}  // namespace

void Codebook::take_nearest(std::span<float> values) const { take_levels(*this, values.data(), values.size()); }

Codebook codebook_of(std::span<const double> levels) {
  Codebook book;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    book.levels.push_back(static_cast<float>(levels[i]));
    if (i > 0) book.bounds.push_back(static_cast<float>((levels[i - 1] + levels[i]) / 2));
  }
  return book;
}

const Codebook& gaussian_codebook(int bits) {
  static const std::array<Codebook, 4> kBooks{fitted_to_gaussian(1), fitted_to_gaussian(2), fitted_to_gaussian(3),
                                              fitted_to_gaussian(4)};
  OSCAR_CHECK(1 <= bits && bits <= 4);
  return kBooks[static_cast<std::size_t>(bits - 1)];
}

Codebook codebook_of_sample(std::vector<float> sample, int levels) {
  OSCAR_CHECK(!sample.empty());
  std::sort(sample.begin(), sample.end());
  std::vector<double> sum_below{0};
  for (const float x : sample) sum_below.push_back(sum_below.back() + x);
  std::vector<double> found;
  found.reserve(static_cast<std::size_t>(levels));
  for (int i = 0; i < levels; ++i) {
    found.push_back(
        sample[(2 * static_cast<std::size_t>(i) + 1) * sample.size() / (2 * static_cast<std::size_t>(levels))]);
  }
  const auto rank = [&](double x) { return std::lower_bound(sample.begin(), sample.end(), x) - sample.begin(); };
  iterate(found, [&](double low, double high) -> std::optional<double> {
    const auto begin = static_cast<std::size_t>(rank(low)), end = static_cast<std::size_t>(rank(high));
    if (begin >= end) return std::nullopt;
    return (sum_below[end] - sum_below[begin]) / static_cast<double>(end - begin);
  });
  return codebook_of(found);
}

}  // namespace oscar::methods
