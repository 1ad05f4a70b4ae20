// SPDX-License-Identifier: MIT
#include "codec/methods/sequence_method.hpp"

#include "base/check.hpp"

namespace oscar {
namespace {

/// rows = x, rounded to bfloat16 when serving.
void take_stored_rows(HeadsView x, Precision precision, std::vector<float>& rows) {
  rows.resize(static_cast<std::size_t>(x.num_tokens) * static_cast<std::size_t>(x.num_heads * x.head_dim));
  const methods::Matrix by_token{rows, static_cast<std::size_t>(x.num_tokens),
                                 static_cast<std::size_t>(x.num_heads * x.head_dim)};
  methods::for_each_row(by_token, [&](std::span<float> token) {
    x.token_rows(static_cast<std::int64_t>(static_cast<std::size_t>(token.data() - rows.data()) / token.size()), 1,
                 token.data());
    if (precision == Precision::kServing && x.dtype != DType::kBF16) round_to_bf16(token);
  });
}

}  // namespace

methods::Matrix History::by_head() const {
  return {rows, static_cast<std::size_t>(tokens * heads), static_cast<std::size_t>(dim)};
}

methods::Matrix History::by_token() const {
  return {rows, static_cast<std::size_t>(tokens), static_cast<std::size_t>(heads) * static_cast<std::size_t>(dim)};
}

void History::store() const {
  if (context.precision == Precision::kServing)
    methods::for_each_row(by_token(), [](std::span<float> row) { round_to_bf16(row); });
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
