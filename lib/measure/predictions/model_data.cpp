// SPDX-License-Identifier: MIT
#include "measure/predictions/model_data.hpp"

#include <algorithm>
#include <string>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "measure/predictions/token_distribution.hpp"

namespace oscar {
namespace {

/// Throws DataError unless each sequence has one answer, of `least` tokens or more and shorter than itself.
void check_answers(const std::vector<TokenSequence>& sequences, const std::vector<int>& lengths, int least,
                   const std::string& what, const std::string& options) {
  if (sequences.size() != lengths.size()) {
    throw DataError(plural(sequences.size(), what) + ", but " + plural(lengths.size(), "answer length"), options,
                    "give one length per " + what);
  }
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (lengths[i] >= least && static_cast<std::size_t>(lengths[i]) < sequences[i].size()) continue;
    throw DataError("an answer of " + plural(lengths[i], "token") + " does not fit a " + what + " of " +
                        std::to_string(sequences[i].size()),
                    what + " " + std::to_string(i),
                    "answers have " + plural(least, "token") + " or more and stand at the end of the " + what);
  }
}

}  // namespace

void check_model_data(const ModelData& data) {
  for (std::size_t i = 0; i < data.texts.size(); ++i) {
    if (data.texts[i].size() >= 2) continue;
    throw DataError("a sequence of " + plural(data.texts[i].size(), "token") + " has no next token to predict",
                    "evaluation sequence " + std::to_string(i), "give sequences of two tokens or more");
  }
  check_answers(data.needles, data.answer_lengths, 2, "needle", "--needle, --needle-answers");
  check_answers(data.quotes, data.quote_lengths, 1, "quotation", "--quote, --quote-answers");
}

AnswerResult read_answer(const TokenSequence& sequence, int answer_length, int asked, std::span<const float> logits) {
  AnswerResult result{.depth = answer_depth(sequence, answer_length), .asked = asked};
  const auto length = static_cast<std::size_t>(answer_length);
  const std::size_t vocab = logits.size() / (length + 1), begin = sequence.size() - length;
  TokenDistribution prediction;
  for (std::size_t i = 0; i < static_cast<std::size_t>(asked); ++i) {
    prediction.read(logits.subspan(i * vocab, vocab));
    const auto token = static_cast<std::size_t>(sequence[begin + i]);
    const bool right = prediction.top() == token;
    if (right && result.until_wrong == static_cast<int>(i)) ++result.until_wrong;
    result.found += right ? 1 : 0;
    result.nll -= prediction.log_probability(token);
  }
  return result;
}

std::optional<double> answer_depth(const TokenSequence& needle, int answer_length) {
  const auto prompt_end = needle.end() - answer_length;
  const auto answer_end = needle.end() - 1;
  const auto place = std::find_end(needle.begin(), prompt_end, prompt_end, answer_end);
  if (place == prompt_end) return std::nullopt;
  return static_cast<double>(place - needle.begin()) / static_cast<double>(prompt_end - needle.begin());
}

}  // namespace oscar
