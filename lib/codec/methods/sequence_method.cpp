// SPDX-License-Identifier: MIT
#include "codec/methods/sequence_method.hpp"

#include "base/check.hpp"

namespace oscar {
namespace {

void round_all_to_bf16(std::span<float> values) {
  for (float& value : values) value = round_to_bf16(value);
}

}  // namespace

methods::Matrix History::by_head() const {
  return {rows, static_cast<std::size_t>(tokens * heads), static_cast<std::size_t>(dim)};
}

methods::Matrix History::by_token() const {
  return {rows, static_cast<std::size_t>(tokens), static_cast<std::size_t>(heads) * static_cast<std::size_t>(dim)};
}

void History::store() const {
  if (context.precision == Precision::kServing) round_all_to_bf16(rows);
}

std::vector<float> reconstruct(const SideMethod& side, HeadsView x, SequenceRange range,
                               const SequenceContext& context) {
  OSCAR_CHECK(0 <= range.begin && range.end <= x.num_tokens);
  const auto dim = static_cast<std::size_t>(x.head_dim), heads = static_cast<std::size_t>(x.num_heads);
  std::vector<float> rows(static_cast<std::size_t>(x.num_tokens) * heads * dim);
  for (std::size_t row = 0; row * dim < rows.size(); ++row) {
    x.row(static_cast<std::int64_t>(row / heads), static_cast<int>(row % heads),
          std::span(rows).subspan(row * dim, dim));
  }
  if (context.precision == Precision::kServing) round_all_to_bf16(rows);
  if (range.size() <= 0) return rows;
  const auto part = std::span(rows).subspan(static_cast<std::size_t>(range.begin) * heads * dim,
                                            static_cast<std::size_t>(range.size()) * heads * dim);
  const History history{part, range.size(), x.num_heads, x.head_dim, range.begin, context};
  side.reconstruct(history);
  history.store();
  return rows;
}

}  // namespace oscar
