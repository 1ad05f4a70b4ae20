// SPDX-License-Identifier: MIT
// How text is cut into words before byte-level BPE, by the names that llama.cpp gives to the ways of published models
// ("tokenizer.ggml.pre").
#pragma once

#include <string>
#include <vector>

#include "base/json.hpp"

namespace oscar {

struct GgufWords {
  std::vector<std::string> patterns;  // regular expressions, applied one after the other
  bool composes = false;              // text is brought to the normal form NFC before
  bool whole_words = false;           // a word that is a token is taken as it is
  bool begin = false;                 // texts begin with a token unless the file denies it
};

/// pre: a text; null is the way of GPT-2. Throws DataError with `where` for a name that is not known here.
[[nodiscard]] GgufWords gguf_words(const Json& pre, const std::string& where);

}  // namespace oscar
