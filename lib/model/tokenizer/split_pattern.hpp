// SPDX-License-Identifier: MIT
// The regular expression by which a pre-tokenizer cuts text. \p and \s follow Unicode. The only user of PCRE2.
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

  /// Calls match(piece) and between(piece) for the non-empty matches in valid UTF-8 and the text between them, in
  /// order, until one returns false. False if one did. open: the text goes on; only pieces that are the same whatever
  /// follows.
  bool split(std::string_view text, bool open, const std::function<bool(std::string_view)>& match,
             const std::function<bool(std::string_view)>& between) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar
