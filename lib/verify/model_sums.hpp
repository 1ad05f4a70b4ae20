// SPDX-License-Identifier: MIT
// What the predictions of a model with a quantised cache come to, beside its predictions with exact attention; figures
// as llama.cpp's perplexity tool defines them (--kl-divergence), over every position that has a next token:
//   kld      sum over tokens v with log p(v) > -16 of p(v) (log p(v) - log p^(v)), p exact, p^ with the quantised cache
//   ppl_ratio  exp(mean of the change of the negative log-likelihood); its error: ppl_ratio times the standard error of
//              that mean
//   quantiles  between the two nearest of the sorted values, linearly
//   rms_dp   root of the mean square of p^(next) - p(next)
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/runner.hpp"
#include "verify/needles.hpp"
#include "verify/report.hpp"

namespace oscar::verify {

/// One text, position by position.
struct TextSums {
  std::vector<double> nll, nll_change, kld, dp;
  std::int64_t same_top = 0;
};

/// logits, exact: (tokens, vocab), with the quantised cache and without. tokens: two or more.
[[nodiscard]] TextSums compare_predictions(const TokenSequence& tokens, std::span<const float> logits,
                                           std::span<const float> exact);

/// The figures of one method. needles, quotes: empty if none were given.
[[nodiscard]] ModelMetrics model_metrics(const std::vector<TextSums>& texts, const std::vector<AnswerResult>& needles,
                                         const std::vector<AnswerResult>& quotes = {});

/// log(sum_i exp(row_i)), in fp64.
[[nodiscard]] double log_sum_exp(std::span<const float> row);

/// The value below which `fraction` of the sorted values lie, linearly between neighbours; 0 of none.
[[nodiscard]] double quantile(std::span<const double> sorted, double fraction);

}  // namespace oscar::verify
