// SPDX-License-Identifier: MIT
// What a kind of tokenizer does behind Tokenizer (tokenizer.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/tokenizer/tokenizer.hpp"

namespace oscar {

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  /// Ids of valid UTF-8; stops soon after `enough` with a prefix of them. See Tokenizer::encode for a text that is
  /// open.
  [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text, std::size_t enough,
                                                         TextEnd end) const = 0;
  /// See Tokenizer::prefix.
  [[nodiscard]] virtual const std::vector<std::int32_t>& prefix() const = 0;
};

/// Reads a tokenizer.json, by code of ours. Throws DataError for a missing or malformed file, and for a feature that is
/// not supported.
[[nodiscard]] std::unique_ptr<const TextEncoder> make_json_encoder(const std::filesystem::path& tokenizer_json);

/// Reads a tokenizer.model of SentencePiece (unigram or BPE), by its library, and the tokenizer_config.json beside it.
/// Throws DataError for damaged files, BackendUnavailable if this build or machine lacks the library.
[[nodiscard]] std::unique_ptr<const TextEncoder> make_piece_encoder(const std::filesystem::path& tokenizer_model);
/// The names of its pieces and of the tokens that were added to them, and their ids.
[[nodiscard]] std::unordered_map<std::string, std::int32_t> piece_names(const std::filesystem::path& tokenizer_model);

}  // namespace oscar
