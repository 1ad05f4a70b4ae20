// SPDX-License-Identifier: MIT
// Needles and quotations: sequences that end with an answer which stands somewhere earlier in them. A model is judged
// by what it predicts for each token of the answer, given all tokens before it (teacher forcing). Of a needle the last
// token (the full stop) does not count; a quotation is asked for to its last token.
#pragma once

#include <optional>
#include <span>

#include "model/run/runner.hpp"

namespace oscar::verify {

/// What a model predicts for the tokens of one answer.
struct AnswerResult {
  std::optional<double> depth;  // see answer_depth
  int found = 0, asked = 0;     // tokens that are the argmax, and all that count
  int until_wrong = 0;          // tokens before the first that is not the argmax
  double nll = 0;               // negative log-likelihood of all that count, nats
  [[nodiscard]] bool hit() const { return found == asked; }
};

/// Reads the first `asked` tokens of the answer. logits: (answer_length + 1, vocab), those of the sequence's last
/// tokens.
[[nodiscard]] AnswerResult read_answer(const TokenSequence& sequence, int answer_length, int asked,
                                       std::span<const float> logits);

/// Where the answer last stands before the end, as a share of the prompt: 0 its beginning, 1 its end. None if it stands
/// nowhere.
[[nodiscard]] std::optional<double> answer_depth(const TokenSequence& needle, int answer_length);

}  // namespace oscar::verify
