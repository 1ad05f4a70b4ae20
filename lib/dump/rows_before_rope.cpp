// SPDX-License-Identifier: MIT
#include "dump/rows_before_rope.hpp"

namespace oscar {

bool RowsBeforeRope::next(QkvChunk& chunk, bool with_queries) {
  if (!layer_.next(chunk)) return false;
  struct Owner {
    std::shared_ptr<const void> source;
    std::vector<float> q, k;
  };
  const auto owner = std::make_shared<Owner>(Owner{chunk.owner, {}, {}});
  const auto turned_back = [&](const HeadsView& x, std::vector<float>& rows) {
    const auto width = static_cast<std::size_t>(x.num_heads * x.head_dim);
    rows.resize(static_cast<std::size_t>(x.num_tokens) * width);
    x.token_rows(0, x.num_tokens, rows.data());
    for (std::size_t s = 0; s < chunk.sequences.size(); ++s) {
      const SequenceRange& range = chunk.sequences[s];
      const auto own = std::span(rows).subspan(static_cast<std::size_t>(range.begin) * width,
                                               static_cast<std::size_t>(range.size()) * width);
      turn(rotary_, Turn::kBack, own, x.num_heads, chunk.first_positions.empty() ? 0 : chunk.first_positions[s]);
    }
    return heads_view(rows, x.num_tokens, x.num_heads, x.head_dim);
  };
  if (with_queries) chunk.view.base_q = turned_back(chunk.view.q, owner->q);
  chunk.view.base_k = turned_back(chunk.view.k, owner->k);
  chunk.owner = owner;
  return true;
}

}  // namespace oscar
