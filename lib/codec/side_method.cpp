// SPDX-License-Identifier: MIT
#include "codec/side_method.hpp"

#include "base/check.hpp"
#include "base/threads.hpp"

namespace oscar {
namespace {

/// Calls change(first token, tokens) for blocks of tokens, on all threads.
template <class Change>
void for_token_blocks(std::int64_t tokens, const Change& change) {
  constexpr std::int64_t kTokens = 256;
  parallel_for(static_cast<std::size_t>((tokens + kTokens - 1) / kTokens), [&](std::size_t block) {
    const std::int64_t first = static_cast<std::int64_t>(block) * kTokens;
    change(first, std::min(kTokens, tokens - first));
  });
}

/// rows = x, rounded to bfloat16 when serving.
void take_stored_rows(HeadsView x, Precision precision, std::vector<float>& rows) {
  const auto width = static_cast<std::size_t>(x.num_heads * x.head_dim);
  rows.resize(static_cast<std::size_t>(x.num_tokens) * width);
  for_token_blocks(x.num_tokens, [&](std::int64_t first, std::int64_t count) {
    const auto part =
        std::span(rows).subspan(static_cast<std::size_t>(first) * width, static_cast<std::size_t>(count) * width);
    x.token_rows(first, count, part.data());
    if (precision == Precision::kServing && x.dtype != DType::kBF16) round_to_bf16(part);
  });
}

}  // namespace

void History::store() const {
  if (context.precision != Precision::kServing) return;
  const auto width = static_cast<std::size_t>(heads) * static_cast<std::size_t>(dim);
  for_token_blocks(tokens, [&](std::int64_t first, std::int64_t count) {
    round_to_bf16(rows.subspan(static_cast<std::size_t>(first) * width, static_cast<std::size_t>(count) * width));
  });
}

std::vector<float> reconstruct(const SideMethod& side, HeadsView x, SequenceRange range, const SequenceContext& context,
                               std::vector<float> rows) {
  OSCAR_CHECK(0 <= range.begin && range.end <= x.num_tokens);
  take_stored_rows(x, context.precision, rows);
  if (range.size() <= 0) return rows;
  const std::size_t width = rows.size() / static_cast<std::size_t>(x.num_tokens);
  const auto part = std::span(rows).subspan(static_cast<std::size_t>(range.begin) * width,
                                            static_cast<std::size_t>(range.size()) * width);
  const History history{part, range.size(), x.num_heads, x.head_dim, range.begin, context};
  side.reconstruct(history);
  history.store();
  return rows;
}

}  // namespace oscar
