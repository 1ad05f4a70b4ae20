// SPDX-License-Identifier: MIT
#include "verify/needles.hpp"

#include <algorithm>

namespace oscar::verify {

int found_answer_tokens(const TokenSequence& needle, int answer_length, std::span<const float> logits) {
  int found = 0;
  const auto length = static_cast<std::size_t>(answer_length);
  const std::size_t vocab = logits.size() / (length + 1), begin = needle.size() - length;
  for (std::size_t t = begin; t + 1 < needle.size(); ++t) {
    const auto row = logits.subspan((t - begin) * vocab, vocab);
    found += std::max_element(row.begin(), row.end()) - row.begin() == needle[t] ? 1 : 0;
  }
  return found;
}

std::optional<double> answer_depth(const TokenSequence& needle, int answer_length) {
  const auto prompt_end = needle.end() - answer_length;
  const auto answer_end = needle.end() - 1;
  const auto place = std::find_end(needle.begin(), prompt_end, prompt_end, answer_end);
  if (place == prompt_end) return std::nullopt;
  return static_cast<double>(place - needle.begin()) / static_cast<double>(prompt_end - needle.begin());
}

}  // namespace oscar::verify
