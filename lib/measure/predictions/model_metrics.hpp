// SPDX-License-Identifier: MIT
// What a model is measured on: texts, and sequences that end with answers which stand somewhere earlier in them
// (needles, quotations); and how an answer is read.
//
// What a KV method does to a model: the decoder runs with the method's attention in every layer, over whole sequences,
// against the same run with exact attention. Figures are of every position that has a next token
// (PositionFigures), as llama.cpp's perplexity tool defines them (--kl-divergence):
//   ppl_ratio  exp(mean of the change of the negative log-likelihood); its error: ppl_ratio times the standard error of
//              that mean
//   quantiles  between the two nearest of the sorted values, linearly
//   rms_dp     root of the mean square of p^(next) - p(next)
//   retrieval = share of needles whose answer is the argmax at every one of its tokens but the last (the full stop),
//   teacher-forced
//   quotations: as needles, but every token counts, and the share of tokens that are right is the figure
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "kernels/backend.hpp"
#include "measure/figures.hpp"
#include "measure/kv_method.hpp"
#include "model/run/runner.hpp"
#include "model/tokenizer/tokens.hpp"

namespace oscar {

struct ModelData {
  std::vector<TokenSequence> texts;    // at least two tokens each
  std::vector<TokenSequence> needles;  // prompt and answer
  std::vector<int> answer_lengths;     // one per needle: tokens of the answer, full stop included
  std::vector<TokenSequence> quotes;   // a text, and at the end a passage of it once more
  std::vector<int> quote_lengths;      // one per quotation: tokens at the end that the model is to repeat
};

/// Throws DataError if sequences or answers are too short or their numbers differ.
void check_model_data(const ModelData& data);

/// What a model predicts for the tokens of one answer, given all tokens before each (teacher forcing). Of a needle the
/// last token (the full stop) does not count; a quotation is asked for to its last token.
struct AnswerResult {
  std::optional<double> depth;  // see answer_depth
  int found = 0, asked = 0;     // tokens that are the argmax, and all that count
  int until_wrong = 0;          // tokens before the first that is not the argmax
  double nll = 0;               // negative log-likelihood of all that count, nats
  [[nodiscard]] bool hit() const { return found == asked; }
};

/// Counts how an answer was predicted. answer: for each token that counts, the figures at the token before it; depth:
/// answer_depth().
[[nodiscard]] AnswerResult read_answer(std::optional<double> depth, std::span<const PositionFigures> answer);

/// Where the answer last stands before the end, as a share of the prompt: 0 its beginning, 1 its end. None if it stands
/// nowhere.
[[nodiscard]] std::optional<double> answer_depth(const TokenSequence& needle, int answer_length);

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
