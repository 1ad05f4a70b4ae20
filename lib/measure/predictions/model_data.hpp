// SPDX-License-Identifier: MIT
// What a model is measured on: texts, and sequences that end with answers which stand somewhere earlier in them
// (needles, quotations, and probes that are made here); and how an answer is read.
#pragma once

#include <cstdint>
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

/// Retrieval tasks made from any text: a span of tokens from elsewhere is put in early and repeated at the end, and a
/// model that can look back finds how it goes on. They say which KV method keeps what lies far back, without needing
/// anybody's needles.
struct ProbeOptions {
  int count = 16;
  int span_tokens = 24;
  /// How many tokens of the repeated span the model is given before it has to go on by itself.
  int cue_tokens = 8;
  /// The length is at most this; the span begins behind `first` and ends `distance` tokens or more before its
  /// repetition.
  std::int64_t length = 1024, first = 64, distance = 320;
  std::uint64_t seed = 0;
};

struct Probes {
  std::vector<TokenSequence> sequences;
  std::vector<int> answer_lengths;
};

/// texts: what the probes are written into, in turns; spans: where the repeated spans come from. Fewer than `count` (or
/// none) if the texts are too short.
[[nodiscard]] Probes make_probes(std::span<const TokenSequence> texts, std::span<const TokenSequence> spans,
                                 const ProbeOptions& options);

}  // namespace oscar
