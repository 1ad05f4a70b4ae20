// SPDX-License-Identifier: MIT
#include "model/tokenizer/piece_model.hpp"

#include "base/plugin.hpp"

namespace oscar {

std::unique_ptr<const PieceModel> open_piece_model(const std::string& content, bool space_before,
                                                   const std::string& where) {
  using Factory = const PieceModel* (*)(const std::string&, bool, const std::string&);
  static const auto factory = reinterpret_cast<Factory>(plugin_symbol(
      "sentencepiece", "oscar_open_piece_model",
      "tokenizer.model needs the library SentencePiece: install libsentencepiece-dev and build oscar again, put the "
      "model's tokenizer.json beside it, or pass token ids with --tokens"));
  return std::unique_ptr<const PieceModel>(factory(content, space_before, where));
}

}  // namespace oscar
