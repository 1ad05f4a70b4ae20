// SPDX-License-Identifier: MIT
// What a server said beside what exact attention, and a rotation set, give the same tokens. At every generated position
// but the first (which the prompt alone decides), over the tokens that the server lists, the rest as one token:
//   measured   mean KL(exact || server)      predicted  mean KL(exact || set)
//   agreement  sum p a b / sqrt(sum p a^2 sum p b^2), a = log server - log exact, b = log set - log exact, p exact
#pragma once

#include <cstdint>
#include <vector>

#include "model/tokenizer/tokens.hpp"
#include "serve/served_answers.hpp"

namespace oscar::serve {

/// A prompt, and what the server made of it.
struct Dialogue {
  TokenSequence prompt, answer;  // answer: of needles, what should follow
  std::vector<ServedPosition> served;

  /// Prompt and generated tokens.
  [[nodiscard]] TokenSequence tokens() const;
  [[nodiscard]] bool found() const;
};

/// Somebody's logarithms of the probabilities of the tokens that the server lists at a position; NaN: not known.
struct Prediction {
  std::vector<double> listed;
  std::int32_t top = 0;  // the choice
};
/// [dialogue][generated position but the first]
using Predictions = std::vector<std::vector<Prediction>>;

struct ServedDifferences {
  std::int64_t positions = 0;
  double measured_kl = 0, predicted_kl = 0, agreement = 0;
  double same_top = 0, predicted_same_top = 0;  // share of positions where server, and set, choose as exact attention
};

/// set: null where nothing predicts; what it would say is 0 then.
[[nodiscard]] ServedDifferences compare(const std::vector<Dialogue>& dialogues, const Predictions& exact,
                                        const Predictions* set);

}  // namespace oscar::serve
