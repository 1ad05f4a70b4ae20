// SPDX-License-Identifier: MIT
#include "verify/predictions/model_data.hpp"

#include <string>

#include "base/errors.hpp"
#include "base/text.hpp"

namespace oscar::verify {
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

}  // namespace oscar::verify
