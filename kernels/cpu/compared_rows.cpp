// SPDX-License-Identifier: MIT
#include "kernels/cpu/compared_rows.hpp"

#include <algorithm>
#include <cmath>

#include "base/exp.hpp"
#include "base/vector_clones.hpp"
#include "kernels/arguments.hpp"

namespace oscar::cpu {

/// weights = exp(scores - max), not yet divided by their sum.
OSCAR_VECTOR_CLONES static Softmax exponentials(const double* __restrict scores, std::size_t count,
                                                double* __restrict weights) {
  const double highest = highest_of(scores, count);
  for (std::size_t j = 0; j < count; ++j) weights[j] = scores[j] - highest;
  exp_in_place(std::span(weights, count));
  return {highest, std::log(strand_sum(count, [&](std::size_t j) { return weights[j]; }))};
}

OSCAR_VECTOR_CLONES static void scale(const double* from, std::size_t count, double by, double* to) {
  for (std::size_t j = 0; j < count; ++j) to[j] = from[j] * by;
}

/// The sum of (x - mean x)^2, x(j) = term(j).
template <class Term>
[[gnu::always_inline]] inline double squares_from_mean(std::size_t count, const Term& term) {
  const double mean = strand_sum(count, term) / static_cast<double>(count);
  return strand_sum(count, [&](std::size_t j) {
    const double e = term(j) - mean;
    return e * e;
  });
}

OSCAR_VECTOR_CLONES static double variation(const double* x, std::size_t count) {
  return squares_from_mean(count, [=](std::size_t j) { return x[j]; });
}

OSCAR_VECTOR_CLONES static double variation_of_difference(const double* a, const double* b, std::size_t count) {
  return squares_from_mean(count, [=](std::size_t j) { return a[j] - b[j]; });
}

OSCAR_VECTOR_CLONES static double kl_divergence(const double* p, const double* scores, const Softmax& exact,
                                                const double* approximate, const Softmax& other, std::size_t count) {
  const auto log_p = [](double score, const Softmax& softmax) {
    const double log = score - softmax.highest - softmax.log_sum;
    return log > kLowestLogProbability ? log : kLowestLogProbability;
  };
  return strand_sum(count,
                    [&](std::size_t j) { return p[j] * (log_p(scores[j], exact) - log_p(approximate[j], other)); });
}

ExactRow exact_row(std::span<const double> scores, std::span<double> probabilities) {
  const std::size_t count = scores.size();
  ExactRow row;
  row.softmax = exponentials(scores.data(), count, probabilities.data());
  scale(probabilities.data(), count, std::exp(-row.softmax.log_sum), probabilities.data());
  row.score_norm = variation(scores.data(), count);
  for (std::size_t j = 0; j < count; ++j) {
    if (probabilities[j] >= kNeedleShare) row.needles.push_back(j);
  }
  return row;
}

void compare_row(const ExactRow& row, std::span<const double> scores, std::span<const double> probabilities,
                 std::span<double> approximate, const Windows& windows, std::vector<double>& scratch,
                 AttentionErrors& errors) {
  const std::size_t count = scores.size();
  scratch.resize(count);
  errors.logit_error += variation_of_difference(approximate.data(), scores.data(), count);
  errors.logit_norm += row.score_norm;
  const Softmax softmax = exponentials(approximate.data(), count, scratch.data());
  const double kl = kl_divergence(probabilities.data(), scores.data(), row.softmax, approximate.data(), softmax, count);
  scale(scratch.data(), count, std::exp(-softmax.log_sum), approximate.data());
  const auto sink = static_cast<std::size_t>(windows.sink), recent = static_cast<std::size_t>(windows.recent);
  for (const std::size_t j : row.needles) {
    if (j < sink || j + recent >= count) continue;
    errors.needle_mass += probabilities[j];
    errors.needle_kept += std::min(probabilities[j], approximate[j]);
  }
  errors.softmax_kl += kl;
  errors.query_kl.push_back(kl);
  ++errors.queries;
}

void compare_output(std::span<const double> exact, std::span<const double> approximate, AttentionErrors& errors) {
  double norm = 0;
  double approximate_norm = 0;
  double product = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double e = exact[i] - approximate[i];
    errors.output_error += e * e;
    norm += exact[i] * exact[i];
    approximate_norm += approximate[i] * approximate[i];
    product += exact[i] * approximate[i];
  }
  errors.output_norm += norm;
  if (norm > 0 && approximate_norm > 0) errors.output_cosine += product / std::sqrt(norm * approximate_norm);
}

}  // namespace oscar::cpu
