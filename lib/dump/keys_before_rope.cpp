// SPDX-License-Identifier: MIT
#include "dump/keys_before_rope.hpp"

namespace oscar {

bool KeysBeforeRope::next(QkvChunk& chunk) {
  if (!layer_.next(chunk)) return false;
  const HeadsView k = chunk.view.k;
  const auto width = static_cast<std::size_t>(k.num_heads * k.head_dim);
  const auto rows = std::make_shared<std::vector<float>>(static_cast<std::size_t>(k.num_tokens) * width);
  k.token_rows(0, k.num_tokens, rows->data());
  for (std::size_t s = 0; s < chunk.sequences.size(); ++s) {
    const SequenceRange& range = chunk.sequences[s];
    const auto own = std::span(*rows).subspan(static_cast<std::size_t>(range.begin) * width,
                                              static_cast<std::size_t>(range.size()) * width);
    turn(rotary_, Turn::kBack, own, k.num_heads, chunk.first_positions.empty() ? 0 : chunk.first_positions[s]);
  }
  chunk.view.k = heads_view(*rows, k.num_tokens, k.num_heads, k.head_dim);
  chunk.owner = std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(chunk.owner, rows);
  return true;
}

}  // namespace oscar
