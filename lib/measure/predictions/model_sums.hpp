// SPDX-License-Identifier: MIT
// Summary figures of a model with a quantised cache over every position that has a next token (token_distribution.hpp),
// as llama.cpp's perplexity tool defines them (--kl-divergence):
//   ppl_ratio  exp(mean of the change of the negative log-likelihood); its error: ppl_ratio times the standard error of
//              that mean
//   quantiles  between the two nearest of the sorted values, linearly
//   rms_dp   root of the mean square of p^(next) - p(next)
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "measure/figures.hpp"
#include "measure/predictions/model_data.hpp"
#include "measure/predictions/token_distribution.hpp"

namespace oscar {

/// One text, position by position.
using TextFigures = std::vector<PositionFigures>;

/// The figures of one method. needles, quotes: empty if none were given.
[[nodiscard]] ModelMetrics model_metrics(const std::vector<TextFigures>& texts,
                                         const std::vector<AnswerResult>& needles,
                                         const std::vector<AnswerResult>& quotes = {});

}  // namespace oscar
