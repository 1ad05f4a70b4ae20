// SPDX-License-Identifier: MIT
// Text to token ids, as a checkpoint's tokenizer.json says: added tokens, normalizer, words, BPE.
// Supported: normalizers NFC, Prepend, Replace of a string; pre-tokenizers Split by a regular expression (Isolated, or
// Removed with invert) or after a string, Digits, Metaspace, ByteLevel, alone or in a Sequence; model BPE over bytes,
// or over characters with byte fallback or an unknown token. Anything else is an error that names the member.
// Or as its tokenizer.model says, a model of SentencePiece, unigram or BPE, through its library. Nothing is added
// around a text by encode(), and truncation and padding settings are not applied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace oscar {

class TextEncoder;

/// The file that encodes text for a model: a checkpoint's tokenizer.json, else its tokenizer.model; a GGUF file itself.
/// Throws DataError if there is none.
[[nodiscard]] std::filesystem::path tokenizer_of(const std::filesystem::path& model);
/// Ids of all tokens of such a file by their bytes; pieces of SentencePiece have their marks for spaces. Throws as
/// Tokenizer does.
[[nodiscard]] std::unordered_map<std::string, std::int32_t> token_names(const std::filesystem::path& file);

class Tokenizer {
 public:
  /// file: tokenizer.json, a SentencePiece model (*.model), or a model in GGUF (*.gguf). Throws DataError: missing or
  /// malformed file, a feature that is not supported; BackendUnavailable: SentencePiece's library is missing.
  explicit Tokenizer(const std::filesystem::path& file);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Ids of a text; stops soon after `enough` ids (what it returns is always a prefix of the whole). Throws DataError
  /// with `where` and the byte offset if the text is not UTF-8.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text, const std::string& where,
                                                 std::size_t enough = std::numeric_limits<std::size_t>::max()) const;
  /// Ids that belong before every text that a model sees, for example begin-of-sequence; often none.
  [[nodiscard]] const std::vector<std::int32_t>& prefix() const;

 private:
  std::unique_ptr<const TextEncoder> encoder_;
};

}  // namespace oscar
