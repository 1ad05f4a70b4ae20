// SPDX-License-Identifier: MIT
// Second moments of rows as they are stored.
#include "kernels/cuda/chunks.hpp"
#include "kernels/cuda/gram_sums.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/rows.hpp"

namespace oscar::cuda {
namespace {

template <class T>
void add_grams(const Context& context, std::span<const Views<1>> parts, MatrixStack& grams) {
  const HeadsView& x = parts[0][0];
  const int g = x.num_heads / grams.count;
  const Cut cut = cut_tokens<T>(most_tokens(parts), g, std::int64_t{x.num_heads} * x.head_dim);
  GramSums<T> sums(context, grams.count, grams.dim);
  DeviceBuffer<T> rows(context, static_cast<std::size_t>(cut.slab_tokens) * x.num_heads * x.head_dim);
  const auto pieces = pieces_of(parts, cut.chunk_tokens(context, x.bytes_per_token()));
  for_each_chunk<1>(context, pieces, [&](std::size_t, const auto& chunk) {
    for_each_slab(cut, chunk, [&](const auto& slab) {
      const std::int64_t blocks = cut.blocks(slab[0].num_tokens);
      convert_rows(context, slab[0], grams.count, blocks * cut.block_tokens, rows.data());
      sums.add(blocks, cut.block_tokens * g, rows.data(), rows.data());
    });
  });
  sums.add_to(grams);
}

}  // namespace

void accumulate_grams(const Context& context, std::span<const HeadsView> parts, MatrixStack& grams) {
  std::vector<Views<1>> views;
  for (const HeadsView& x : parts) {
    OSCAR_CHECK(x.head_dim == grams.dim && x.num_heads % grams.count == 0 && x.num_heads == parts[0].num_heads);
    OSCAR_CHECK(x.dtype == parts[0].dtype);
    views.push_back({x});
  }
  if (views.empty()) return;
  with_product_type(context, [&](auto type) { add_grams<decltype(type)>(context, views, grams); });
}

}  // namespace oscar::cuda
