// SPDX-License-Identifier: MIT
#include "measure/predictions/token_distribution.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/exp.hpp"
#include "base/vector_clones.hpp"

namespace oscar {

/// llama.cpp counts tokens whose exact log-probability is above this only.
constexpr double kLowestLogProbability = -16;
/// Sums run side by side, so that the processor's vectors hold them; as many on every machine.
constexpr std::size_t kSums = 16;

/// Returns the highest of the row, and out = row - that.
OSCAR_VECTOR_CLONES float shift_by_highest(const float* row, std::size_t count, double* out) {
  const float highest = highest_of(row, count);
  for (std::size_t i = 0; i < count; ++i) out[i] = row[i] - double{highest};
  return highest;
}

OSCAR_VECTOR_CLONES double sum_of(const double* values, std::size_t count) {
  std::array<double, kSums> sums{};
  const std::size_t whole = count / kSums * kSums;
  for (std::size_t i = 0; i < whole; i += kSums) {
    for (std::size_t j = 0; j < kSums; ++j) sums[j] += values[i + j];
  }
  for (std::size_t i = whole; i < count; ++i) sums[0] += values[i];
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

/// sum of w_i (a_i - b_i + shift) over a_i > lowest.
OSCAR_VECTOR_CLONES double weighted_differences(const double* w, const float* a, const float* b, double shift,
                                                double lowest, std::size_t count) {
  std::array<double, kSums> sums{};
  const auto term = [&](std::size_t i) { return a[i] > lowest ? w[i] * (double{a[i]} - double{b[i]} + shift) : 0.0; };
  const std::size_t whole = count / kSums * kSums;
  for (std::size_t i = 0; i < whole; i += kSums) {
    for (std::size_t j = 0; j < kSums; ++j) sums[j] += term(i + j);
  }
  for (std::size_t i = whole; i < count; ++i) sums[0] += term(i);
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

void TokenDistribution::read(std::span<const float> logits) {
  logits_ = logits;
  weights_.resize(logits.size());
  const float highest = shift_by_highest(logits.data(), logits.size(), weights_.data());
  top_ = static_cast<std::size_t>(std::find(logits.begin(), logits.end(), highest) - logits.begin());
  exp_in_place(weights_);
  weight_sum_ = sum_of(weights_.data(), weights_.size());
  log_sum_ = highest + std::log(weight_sum_);
}

double TokenDistribution::divergence(const TokenDistribution& other) const {
  return weighted_differences(weights_.data(), logits_.data(), other.logits_.data(), other.log_sum_ - log_sum_,
                              kLowestLogProbability + log_sum_, logits_.size()) /
         weight_sum_;
}

PositionFigures compare(const TokenDistribution& exact, const TokenDistribution& quantised, std::size_t next) {
  const double log_p = exact.log_probability(next), log_q = quantised.log_probability(next);
  return {-log_q, log_p - log_q, exact.divergence(quantised), std::exp(log_q) - std::exp(log_p),
          exact.top() == quantised.top()};
}

}  // namespace oscar
