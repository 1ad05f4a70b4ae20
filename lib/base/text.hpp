// SPDX-License-Identifier: MIT
// Texts that come from files of others, and where they may go: to a terminal, into a shell's line, into a document. And
// what somebody who wrote a name that is not there may have meant.
#pragma once

#include <charconv>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.hpp"

namespace oscar {

/// Returns `text` as a terminal may show it: control characters other than newline and tab, marks that change the
/// direction of writing, and line separators become \u001b and the like; bytes that are no UTF-8 become U+FFFD. A JSON
/// document stays the same document.
[[nodiscard]] std::string printable(std::string_view text);
/// Returns printable(text) with newlines and tabs escaped, too, for text that must stay on its line.
[[nodiscard]] std::string printable_line(std::string_view text);

/// Returns `text` as one word of a POSIX shell, whatever it holds: 'it'\''s'.
[[nodiscard]] std::string shell_quoted(std::string_view text);

/// Returns `text` as it is. Throws DataError if printable_line() would change it, or if it has more than `most` bytes.
/// what: names it in the error ("the objective").
[[nodiscard]] std::string plain_text(std::string text, const std::string& what, const std::string& where,
                                     std::size_t most = 4096);

/// Returns a count and what is counted: plural(1, "layer") is "1 layer", plural(2, "layer") "2 layers". many: for words
/// that do not take an s ("matrices").
[[nodiscard]] std::string plural(std::int64_t count, std::string_view one, std::string_view many = "");

/// Returns what is told of each, one behind the other: "a, b, c". text: of one of them; default: they are texts.
template <class Range, class Text = std::identity>
[[nodiscard]] std::string joined(Range&& range, std::string_view between = ", ", const Text& text = {}) {
  std::string all;
  for (const auto& each : range) (all += all.empty() ? "" : between) += std::invoke(text, each);
  return all;
}

/// Returns `text` with small letters in the place of capital ones (ASCII).
[[nodiscard]] std::string lower_case(std::string text);

/// Returns the number that `text` is; nothing for other texts, negative numbers, and those that the type cannot hold.
template <class Number = int>
[[nodiscard]] std::optional<Number> parse_number(std::string_view text) {
  Number value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || value < Number{0}) return std::nullopt;
  return value;
}

/// Whether `text` may be a part of a name, and of a path: letters, digits, '.', '_' and '-', at most 96 of them, the
/// first a letter, a digit or '_', and no "..".
[[nodiscard]] bool is_plain_name(std::string_view text);

/// Up to `most` of `names` that `word` is likely a slip of, nearest first, whatever the case; empty if none is near.
[[nodiscard]] std::vector<std::string> near_names(const std::string& word, const std::vector<std::string>& names,
                                                  std::size_t most = 3);

/// Returns the first of near_names(), or "".
[[nodiscard]] std::string nearest_name(const std::string& word, const std::vector<std::string>& names);

/// The error for an option's value that is none of `names`: says which there are, and the one that was likely meant.
/// hint: a whole clause that says more, or empty.
[[nodiscard]] UsageError unknown_choice(const std::string& value, const std::string& option,
                                        const std::vector<std::string>& names, const std::string& hint = "");

}  // namespace oscar
