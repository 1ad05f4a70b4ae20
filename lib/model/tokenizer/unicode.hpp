// SPDX-License-Identifier: MIT
// Text as Unicode has it: UTF-8 validity, normal form C, and the regular expression by which a pre-tokenizer cuts it.
// The only user of utf8proc and PCRE2.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace oscar {

/// Byte offset of the first byte that is not part of well-formed UTF-8.
[[nodiscard]] std::optional<std::size_t> find_invalid_utf8(std::string_view text);
/// Returns `text` without the bytes at its end that begin a character which more bytes could make whole.
[[nodiscard]] std::string_view whole_characters(std::string_view text);
/// Normal form C of valid UTF-8. Throws DataError naming `where` for a combining mark that is newer than Unicode 14:
/// readers of tokenizers differ in how they order it.
[[nodiscard]] std::string to_nfc(std::string_view text, const std::string& where);

/// A regular expression as Hugging Face tokenizers has them (Oniguruma). \p and \s follow Unicode.
class SplitPattern {
 public:
  /// Throws DataError naming `where` if the expression is not valid, or not known to be read here as it is there.
  /// where: empty for an expression that is PCRE2's.
  SplitPattern(const std::string& expression, const std::string& where);
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;

  /// Calls match(piece) and between(piece) for the non-empty matches in valid UTF-8 and the text between them, in
  /// order, until one returns false. False if one did. Characters that are newer than PCRE2's tables match as older
  /// ones of their category. Throws DataError for one that utf8proc does not know either.
  bool split(std::string_view text, const std::function<bool(std::string_view)>& match,
             const std::function<bool(std::string_view)>& between) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar
