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
  /// Ids of valid UTF-8; stops soon after `enough` with a prefix of them.
  [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text, std::size_t enough) const = 0;
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

// A model of SentencePiece as its library runs it. The library is behind a plug-in, oscar_sentencepiece.so, which a
// build without libsentencepiece lacks; it is opened with the first such model. Non-goals: sampling, decoding,
// training.

struct Piece {
  std::string text;  // a space is U+2581
  /// Never made from text by the library: <s>, </s>, <unk>.
  bool special = false;
};

class PieceModel {
 public:
  virtual ~PieceModel() = default;
  /// Returns all pieces in the order of their ids.
  [[nodiscard]] virtual std::vector<Piece> pieces() const = 0;
  /// Id of begin-of-sequence; -1 if it has none.
  [[nodiscard]] virtual std::int32_t begin_id() const = 0;
  /// Appends the ids of a text.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
};

/// content: of the file. space_before: texts get a space in front if the model says so; else they never do. Throws
/// DataError naming `where` if it is no such model, BackendUnavailable if plug-in or library are missing.
[[nodiscard]] std::unique_ptr<const PieceModel> open_piece_model(const std::string& content, bool space_before,
                                                                 const std::string& where);

}  // namespace oscar
