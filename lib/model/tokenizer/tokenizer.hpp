// SPDX-License-Identifier: MIT
// Text to token ids, as a checkpoint's tokenizer.json says: added tokens, normal form C, split pattern, byte-level BPE.
// Supported: normalizer null or NFC; pre-tokenizer Split by a regular expression (Isolated) and ByteLevel, alone or in
// a Sequence; model BPE without dropout, prefixes or byte fallback. Anything else is an error that names the member.
// Nothing is added around a text (no begin-of-sequence token), and truncation and padding settings are not applied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

class Tokenizer {
 public:
  /// Throws DataError: missing or malformed file, a feature that is not supported.
  explicit Tokenizer(const std::filesystem::path& tokenizer_json);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Ids of a text; stops soon after `enough` ids (what it returns is always a prefix of the whole). Throws DataError
  /// with `where` and the byte offset if the text is not UTF-8.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text, const std::string& where,
                                                 std::size_t enough = std::numeric_limits<std::size_t>::max()) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace oscar
