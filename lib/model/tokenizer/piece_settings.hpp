// SPDX-License-Identifier: MIT
// What the files beside a tokenizer.model say about it: tokenizer_config.json and added_tokens.json, as Hugging Face
// transformers read them. Both may be missing.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/tokenizer/added_tokens.hpp"

namespace oscar {

struct PieceSettings {
  std::optional<bool> add_begin;    // "add_bos_token"
  std::string begin;                // "bos_token"; empty: the model's own
  std::vector<AddedToken> added;    // "added_tokens_decoder", then added_tokens.json
  bool space_before = true;         // "add_prefix_space": false turns off what the model says
  bool space_before_parts = false;  // "legacy": a space also after added tokens, not only where the text begins
};

/// folder: of the checkpoint. Throws DataError naming file and member.
[[nodiscard]] PieceSettings read_piece_settings(const std::filesystem::path& folder);

}  // namespace oscar
