// SPDX-License-Identifier: MIT
// attend(): softmax(scores) values over mixed-precision keys and values, in fp32, block by block of queries.
#include <algorithm>

#include "kernels/arguments.hpp"
#include "kernels/cuda/mixed_head.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/query_blocks.hpp"
#include "kernels/cuda/softmax.hpp"

namespace oscar::cuda {
namespace {

/// The outputs of one KV head's g query heads, (queries, g * d_v), go into out (queries, Hq * d_v).
void attend_head(const Context& context, const MixedAttention& mixed, std::span<const std::int64_t> positions,
                 int kv_head, std::span<float> out) {
  const int g = mixed.q.num_heads / mixed.window_k.num_heads;
  const std::int64_t width = g * std::int64_t{mixed.window_v.head_dim};
  const std::int64_t out_width = std::int64_t{mixed.q.num_heads} * mixed.window_v.head_dim;
  const std::int64_t block = queries_per_block(g, mixed.window_k.num_tokens);
  const MixedHead<float> head(context, mixed, kv_head);
  for_each_query_block(mixed.q.num_tokens, block, [&](std::int64_t first, std::int64_t count) {
    const auto block_positions = positions.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    const DeviceBuffer<std::int64_t> device_positions(context, block_positions);
    const std::int64_t keys = block_positions.back() + 1;
    const DeviceBuffer<float> q =
        upload_rows<float>(context, mixed.q.tokens(first, first + count), {kv_head * g, 1, g});
    DeviceBuffer<float> window(context, static_cast<std::size_t>(count * g * keys));
    DeviceBuffer<float> history(context, window.size());
    head.scores(context, q.data(), count * g, keys, window.data(), history.data());
    mixed_softmax(context, {device_positions, g, keys}, mixed.windows, window.data(), history.data());
    const std::vector<float> outputs =
        head.outputs(context, window.data(), history.data(), count * g, keys).to_host(context);
    for (std::int64_t i = 0; i < count; ++i) {
      std::copy_n(outputs.data() + i * width, width, out.data() + (first + i) * out_width + kv_head * width);
    }
  });
}

}  // namespace

void attend(const Context& context, const MixedAttention& mixed, std::span<float> out) {
  check_mixed(mixed);
  OSCAR_CHECK(out.size() == static_cast<std::size_t>(mixed.q.num_tokens) * mixed.q.num_heads * mixed.window_v.head_dim);
  const std::vector<std::int64_t> positions = resolve_positions(mixed);
  for (int head = 0; head < mixed.window_k.num_heads; ++head) attend_head(context, mixed, positions, head, out);
}

}  // namespace oscar::cuda
