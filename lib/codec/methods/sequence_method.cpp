// SPDX-License-Identifier: MIT
#include "codec/methods/sequence_method.hpp"

#include "base/check.hpp"

namespace oscar {
namespace {

void round_row_to_bf16(std::span<float> values) {
  for (float& value : values) value = round_to_bf16(value);
}

/// x as float rows, rounded to bfloat16 when serving.
std::vector<float> stored_rows(HeadsView x, Precision precision) {
  const auto dim = static_cast<std::size_t>(x.head_dim), heads = static_cast<std::size_t>(x.num_heads);
  const auto tokens = static_cast<std::size_t>(x.num_tokens);
  std::vector<float> rows(tokens * heads * dim);
  const methods::Matrix by_token{rows, tokens, heads * dim};
  methods::for_each_row(by_token, [&](std::span<float> token) {
    const auto t = static_cast<std::int64_t>(static_cast<std::size_t>(token.data() - rows.data()) / token.size());
    for (std::size_t head = 0; head < heads; ++head) {
      x.row(t, static_cast<int>(head), token.subspan(head * dim, dim));
    }
    if (precision == Precision::kServing) round_row_to_bf16(token);
  });
  return rows;
}

}  // namespace

methods::Matrix History::by_head() const {
  return {rows, static_cast<std::size_t>(tokens * heads), static_cast<std::size_t>(dim)};
}

methods::Matrix History::by_token() const {
  return {rows, static_cast<std::size_t>(tokens), static_cast<std::size_t>(heads) * static_cast<std::size_t>(dim)};
}

void History::store() const {
  if (context.precision == Precision::kServing) methods::for_each_row(by_token(), round_row_to_bf16);
}

std::vector<float> reconstruct(const SideMethod& side, HeadsView x, SequenceRange range,
                               const SequenceContext& context) {
  OSCAR_CHECK(0 <= range.begin && range.end <= x.num_tokens);
  std::vector<float> rows = stored_rows(x, context.precision);
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
