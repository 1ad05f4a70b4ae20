// SPDX-License-Identifier: MIT
// UTF-8 validity, Unicode normal form C, and case. The only user of utf8proc.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace oscar {

/// Byte offset of the first byte that is not part of well-formed UTF-8.
[[nodiscard]] std::optional<std::size_t> find_invalid_utf8(std::string_view text);
/// Returns `text` without the bytes at its end that begin a character which more bytes could make whole.
[[nodiscard]] std::string_view whole_characters(std::string_view text);
/// Normal form C of valid UTF-8.
[[nodiscard]] std::string to_nfc(std::string_view text);
/// Valid UTF-8 without what case, and compatible ways to write a character, make different (NFKC_Casefold).
[[nodiscard]] std::string fold_case(std::string_view text);

}  // namespace oscar
