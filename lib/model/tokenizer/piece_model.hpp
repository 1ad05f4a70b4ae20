// SPDX-License-Identifier: MIT
// A model of SentencePiece as its library runs it. The library is behind a plug-in, oscar_sentencepiece.so, which a
// build without libsentencepiece lacks; it is opened with the first such model. Non-goals: sampling, decoding,
// training.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

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
