// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "measure/predictions/model_metrics.hpp"
#include "model/run/runner.hpp"

namespace oscar::test {

/// log(sum_i exp(x_i)) by a plain loop.
inline double plain_log_sum(std::span<const float> row) {
  double highest = row[0], sum = 0;
  for (const float x : row) highest = std::max(highest, double{x});
  for (const float x : row) sum += std::exp(x - highest);
  return highest + std::log(sum);
}

/// The figures of one position, by plain loops over its rows of logits. lowest: log-probability of a token that counts.
inline PositionFigures plain_figures(std::span<const float> exact, std::span<const float> other, std::size_t next,
                                     double lowest = -16) {
  const double exact_sum = plain_log_sum(exact), other_sum = plain_log_sum(other);
  PositionFigures f;
  f.nll = other_sum - other[next];
  f.nll_change = (exact[next] - exact_sum) + f.nll;
  f.dp = std::exp(other[next] - other_sum) - std::exp(exact[next] - exact_sum);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double log_p = exact[i] - exact_sum;
    if (log_p > lowest) f.kld += std::exp(log_p) * (log_p - (other[i] - other_sum));
  }
  const auto top = std::ranges::max_element(other) - other.begin();
  f.same_top = std::ranges::max_element(exact) - exact.begin() == top;
  f.right = static_cast<std::ptrdiff_t>(next) == top;
  return f;
}

/// The figures of every position of a text that has a next token. logits, exact: (tokens, vocab).
inline TextFigures text_figures(const TokenSequence& tokens, std::span<const float> logits,
                                std::span<const float> exact) {
  const std::size_t vocab = logits.size() / tokens.size();
  TextFigures figures;
  for (std::size_t t = 0; t + 1 < tokens.size(); ++t) {
    figures.push_back(plain_figures(exact.subspan(t * vocab, vocab), logits.subspan(t * vocab, vocab),
                                    static_cast<std::size_t>(tokens[t + 1])));
  }
  return figures;
}

}  // namespace oscar::test
