// SPDX-License-Identifier: MIT
// What a model is measured on: texts, and sequences that end with answers.
#pragma once

#include <vector>

#include "model/tokenizer/tokens.hpp"

namespace oscar::verify {

struct ModelData {
  std::vector<TokenSequence> texts;    // at least two tokens each
  std::vector<TokenSequence> needles;  // prompt and answer
  std::vector<int> answer_lengths;     // one per needle: tokens of the answer, full stop included
  std::vector<TokenSequence> quotes;   // a text, and at the end a passage of it once more
  std::vector<int> quote_lengths;      // one per quotation: tokens at the end that the model is to repeat
};

/// Throws DataError if sequences or answers are too short or their numbers differ.
void check_model_data(const ModelData& data);

}  // namespace oscar::verify
