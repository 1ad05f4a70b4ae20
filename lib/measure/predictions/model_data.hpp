// SPDX-License-Identifier: MIT
// What a model is measured on: texts, and sequences that end with answers which stand somewhere earlier in them
// (needles, quotations); and how an answer is read.
#pragma once

#include <optional>
#include <span>
#include <vector>

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

/// Reads the first `asked` tokens of the answer. logits: (answer_length + 1, vocab), those of the sequence's last
/// tokens.
[[nodiscard]] AnswerResult read_answer(const TokenSequence& sequence, int answer_length, int asked,
                                       std::span<const float> logits);

/// Where the answer last stands before the end, as a share of the prompt: 0 its beginning, 1 its end. None if it stands
/// nowhere.
[[nodiscard]] std::optional<double> answer_depth(const TokenSequence& needle, int answer_length);

}  // namespace oscar
