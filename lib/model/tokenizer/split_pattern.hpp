// SPDX-License-Identifier: MIT
// The regular expression by which a pre-tokenizer cuts text into words: matches and the text between them are words
// each
// ("Isolated"). \p and \s follow Unicode. The only user of PCRE2.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace oscar {

class SplitPattern {
 public:
  /// Throws DataError naming `where` if the expression is not valid.
  SplitPattern(const std::string& expression, const std::string& where);
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;

  /// Calls word(piece) for each non-empty piece of valid UTF-8, in order, until it returns false. False if it did.
  bool split(std::string_view text, const std::function<bool(std::string_view)>& word) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar
