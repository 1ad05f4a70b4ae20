// SPDX-License-Identifier: MIT
// Text files for calibration as documents. A plain file is one, of UTF-8 text. In a .jsonl file each line is one: an
// object with a member "text", or a chat with "messages" (role and content; of content in parts, those of text).
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace oscar {

/// Whether documents of this file stand for themselves, rather than for a piece of one long text.
[[nodiscard]] bool has_documents(const std::filesystem::path& path);
/// Calls document(text, where) in order until it returns false. Throws DataError naming file and line.
void read_documents(const std::filesystem::path& path,
                    const std::function<bool(const std::string& text, const std::string& where)>& document);

/// Calls line(text, "<where>, line <n>") for the lines that are not blank until it returns false.
void for_each_line(std::string_view text, const std::string& where,
                   const std::function<bool(std::string_view, const std::string&)>& line);

}  // namespace oscar
