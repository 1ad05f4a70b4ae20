// SPDX-License-Identifier: MIT
// Text files for calibration as documents. In a .jsonl file each line is one, in a .json file each member of its list:
// a string, an object with a member "text", or a chat with "messages" (role and content; of content in parts, those of
// text) or "conversations" (from and value, as ShareGPT writes them). Other files are plain text, which has none.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace oscar {

/// Whether documents of this file stand for themselves, rather than for a piece of one long text.
[[nodiscard]] bool has_documents(const std::filesystem::path& path);
/// Calls document(text, where) for each document of a file that has_documents(), in order, until it returns false.
/// Throws DataError that names the file and the line, or the place in the list, and what TextStream throws.
void read_documents(const std::filesystem::path& path,
                    const std::function<bool(const std::string& text, const std::string& where)>& document);

}  // namespace oscar
