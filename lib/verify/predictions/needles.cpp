// SPDX-License-Identifier: MIT
#include "verify/predictions/needles.hpp"

#include "verify/predictions/token_distribution.hpp"

namespace oscar::verify {

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

}  // namespace oscar::verify
