// SPDX-License-Identifier: MIT
#include "kernels/reference/attention_errors.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"

namespace oscar::reference {
namespace {

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

std::vector<double> difference(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = a[i] - b[i];
  return result;
}

/// Returns the sum of the squared distances from the mean.
double spread(const std::vector<double>& values) {
  const double centre = mean(values);
  double sum = 0;
  for (const double value : values) sum += (value - centre) * (value - centre);
  return sum;
}

/// Returns sum_j p_j (log p_j - log p^_j); probabilities below 1e-300 count as 1e-300 under the logarithm.
double divergence(const std::vector<double>& p, const std::vector<double>& p_hat) {
  double sum = 0;
  for (std::size_t j = 0; j < p.size(); ++j) {
    sum += p[j] * (std::log(std::max(p[j], 1e-300)) - std::log(std::max(p_hat[j], 1e-300)));
  }
  return sum;
}

/// Needles are keys of the history that get at least kNeedleShare of the exact attention.
void add_needles(const std::vector<double>& p, const std::vector<double>& p_hat, Windows windows,
                 AttentionErrors& errors) {
  const auto position = static_cast<std::int64_t>(p.size()) - 1;
  for (std::int64_t j = windows.sink; j <= position - windows.recent; ++j) {
    const auto at = static_cast<std::size_t>(j);
    if (p[at] < kNeedleShare) continue;
    errors.needle_mass += p[at];
    errors.needle_kept += std::min(p[at], p_hat[at]);
  }
}

}  // namespace

void add_errors(const Attention& exact, const Attention& mixed, Windows windows, AttentionErrors& errors) {
  OSCAR_CHECK(exact.scores.size() == mixed.scores.size() && exact.output.size() == mixed.output.size());
  const double kl = divergence(exact.probabilities, mixed.probabilities);
  errors.softmax_kl += kl;
  errors.query_kl.push_back(kl);
  errors.logit_error += spread(difference(mixed.scores, exact.scores));
  errors.logit_norm += spread(exact.scores);
  add_needles(exact.probabilities, mixed.probabilities, windows, errors);
  const std::vector<double> error = difference(exact.output, mixed.output);
  const double norm = dot(exact.output, exact.output), mixed_norm = dot(mixed.output, mixed.output);
  errors.output_error += dot(error, error);
  errors.output_norm += norm;
  if (norm > 0 && mixed_norm > 0)
    errors.output_cosine += dot(exact.output, mixed.output) / std::sqrt(norm * mixed_norm);
  ++errors.queries;
}

}  // namespace oscar::reference
