// SPDX-License-Identifier: MIT
// What tokenizer.json says, checked and in our terms. Tokens are byte strings: the printable stand-ins that byte-level
// tokenizers write for bytes are undone here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace oscar {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool normalized = false;  // looked for after normalization, not before
};

struct TokenizerFile {
  std::vector<AddedToken> added_tokens;
  bool nfc = false;
  std::vector<std::string> split_patterns;  // applied one after the other
  std::unordered_map<std::string, std::int32_t> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;
  bool ignore_merges = false;
};

/// Throws DataError that names the file and the member.
[[nodiscard]] TokenizerFile read_tokenizer_file(const std::filesystem::path& path);

}  // namespace oscar
