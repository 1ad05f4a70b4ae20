// SPDX-License-Identifier: MIT
// Needles: sequences that end with an answer which stands somewhere earlier in them. The last token of an answer (the
// full stop) does not count.
#pragma once

#include <optional>
#include <span>

#include "model/runner.hpp"

namespace oscar::verify {

/// Tokens of the answer that are the argmax of the logits before them, under teacher forcing; logits (answer_length +
/// 1, vocab) of the last tokens.
[[nodiscard]] int found_answer_tokens(const TokenSequence& needle, int answer_length, std::span<const float> logits);

/// Where the answer last stands before the end, as a share of the prompt: 0 its beginning, 1 its end. None if it stands
/// nowhere.
[[nodiscard]] std::optional<double> answer_depth(const TokenSequence& needle, int answer_length);

}  // namespace oscar::verify
