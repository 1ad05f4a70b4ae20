// SPDX-License-Identifier: MIT
// What a KV method does to a model: the decoder runs with the method's attention in every layer, over whole sequences,
// against the same run with exact attention. Figures are of every position that has a next token
// (token_distribution.hpp), as llama.cpp's perplexity tool defines them (--kl-divergence):
//   ppl_ratio  exp(mean of the change of the negative log-likelihood); its error: ppl_ratio times the standard error of
//              that mean
//   quantiles  between the two nearest of the sorted values, linearly
//   rms_dp     root of the mean square of p^(next) - p(next)
//   retrieval = share of needles whose answer is the argmax at every one of its tokens but the last (the full stop),
//   teacher-forced
//   quotations: as needles, but every token counts, and the share of tokens that are right is the figure
#pragma once

#include <vector>

#include "base/status.hpp"
#include "kernels/backend.hpp"
#include "measure/figures.hpp"
#include "measure/kv_method.hpp"
#include "measure/predictions/model_data.hpp"
#include "measure/predictions/token_distribution.hpp"
#include "model/run/runner.hpp"

namespace oscar {

/// Tells whether measure_model() runs all texts together, so that exact states of all of them spare it a run.
[[nodiscard]] bool runs_texts_together(const ModelRunner& runner, const ModelData& data,
                                       const std::vector<KvMethod>& methods);

/// One entry per method, in order. Methods that quantise nothing get the figures of exact attention. exact: what is
/// behind the last layer where `runner` has read data.texts with exact attention, given only if it
/// runs_texts_together(); null: it is computed.
[[nodiscard]] std::vector<ModelMetrics> measure_model(ModelRunner& runner, const ModelData& data,
                                                      const std::vector<KvMethod>& methods, Precision precision,
                                                      Backend& backend, Status& status,
                                                      const FinalStates* exact = nullptr);

/// One text, position by position.
using TextFigures = std::vector<PositionFigures>;

/// The figures of one method (model_sums.cpp). needles, quotes: empty if none were given.
[[nodiscard]] ModelMetrics model_metrics(const std::vector<TextFigures>& texts,
                                         const std::vector<AnswerResult>& needles,
                                         const std::vector<AnswerResult>& quotes = {});

}  // namespace oscar
