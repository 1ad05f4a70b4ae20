// SPDX-License-Identifier: MIT
// Two figures of a written text that need no model and no dictionary: how much of it repeats itself, and how much is
// not words. A word is a run of letters, or one letter of a script that is written without spaces (Han, Kana, Thai …).
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/tokenizer/unicode.hpp"

namespace oscar::serve {

class TextReader {
 public:
  TextReader();
  /// Case folded, in order. text: any bytes; what is not UTF-8 stands between words.
  [[nodiscard]] std::vector<std::string> words(std::string_view text) const;
  /// Characters that no text has: U+FFFD (what servers write for bytes that are no UTF-8), control characters but tabs
  /// and ends of lines, and code points that are private or not assigned.
  [[nodiscard]] std::size_t broken_characters(std::string_view text) const;

 private:
  SplitPattern word_, broken_;
};

/// Share of a text's runs of four words that stood in it before; 0 for fewer than four words.
[[nodiscard]] double repetition(const std::vector<std::string>& words);

/// Words that are known to be words: each with the number of texts that it stands in.
class KnownWords {
 public:
  void add(const std::vector<std::string>& words);
  /// Share of a text's letters that lie in words which no text has but perhaps `except`, one of those that were added;
  /// broken characters count as such letters. 0 for a text without letters.
  [[nodiscard]] double garbling(const std::vector<std::string>& words, std::size_t broken,
                                const std::vector<std::string>& except) const;

 private:
  std::unordered_map<std::string, int> texts_;
};

}  // namespace oscar::serve
