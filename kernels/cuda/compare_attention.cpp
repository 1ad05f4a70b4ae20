// SPDX-License-Identifier: MIT
// compare_attention(): errors of mixed-precision attention against exact causal attention, in fp64.
#include <cmath>

#include "kernels/arguments.hpp"
#include "kernels/cuda/mixed_head.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/query_blocks.hpp"
#include "kernels/cuda/score_errors.hpp"

namespace oscar::cuda {
namespace {

struct Block {
  std::int64_t first, count;  // queries
  std::span<const std::int64_t> positions;
  [[nodiscard]] std::int64_t keys() const { return positions.back() + 1; }
};

/// One KV head, exact and mixed.
struct HeadPair {
  const QkvView& exact;
  const MixedAttention& mixed;
  int kv_head, g;
  DeviceBuffer<double> k, v;
  MixedHead<double> head;

  HeadPair(const Context& context, const QkvView& exact_, const MixedAttention& mixed_, int kv_head_)
      : exact(exact_),
        mixed(mixed_),
        kv_head(kv_head_),
        g(mixed_.q.num_heads / mixed_.window_k.num_heads),
        k(upload_rows<double>(context, exact_.k, {kv_head_, 1, 1})),
        v(upload_rows<double>(context, exact_.v, {kv_head_, 1, 1})),
        head(context, mixed_, kv_head_) {}

  [[nodiscard]] DeviceBuffer<double> queries(const Context& context, const HeadsView& q, const Block& block) const {
    return upload_rows<double>(context, q.tokens(block.first, block.first + block.count), {kv_head * g, 1, g});
  }
};

/// (queries, g)
std::vector<RowErrors> compare_block(const Context& context, const HeadPair& pair, const Block& block) {
  const std::int64_t rows = block.count * pair.g;
  const std::int64_t keys = block.keys();
  const std::int64_t dim = pair.head.dim;
  const std::int64_t value_dim = pair.head.value_dim;
  const DeviceBuffer<std::int64_t> positions(context, block.positions);
  DeviceBuffer<double> scores(context, static_cast<std::size_t>(rows * keys));
  DeviceBuffer<double> window(context, scores.size());
  DeviceBuffer<double> history(context, scores.size());
  DeviceBuffer<RowErrors> errors(context, static_cast<std::size_t>(rows));
  gemm(context,
       {.m = rows, .n = keys, .k = dim, .b = Transpose::kYes, .alpha = 1 / std::sqrt(static_cast<double>(dim))},
       pair.queries(context, pair.exact.q, block).data(), pair.k.data(), scores.data());
  pair.head.scores(context, pair.queries(context, pair.mixed.q, block).data(), rows, keys, window.data(),
                   history.data());
  compare_scores(context, {positions, pair.g, keys}, pair.mixed.windows, scores.data(), window.data(), history.data(),
                 errors);
  DeviceBuffer<double> outputs(context, static_cast<std::size_t>(rows * value_dim));
  gemm(context, {.m = rows, .n = value_dim, .k = keys}, scores.data(), pair.v.data(), outputs.data());
  const DeviceBuffer<double> mixed_outputs = pair.head.outputs(context, window.data(), history.data(), rows, keys);
  compare_outputs(context, outputs, mixed_outputs, value_dim, errors);
  return errors.to_host(context);
}

void add_row(const RowErrors& row, AttentionErrors& sums) {
  sums.softmax_kl += row.kl;
  sums.output_error += row.output_error;
  sums.output_norm += row.output_norm;
  sums.logit_error += row.logit_error;
  sums.logit_norm += row.logit_norm;
  sums.query_kl.push_back(row.kl);
  ++sums.queries;
}

}  // namespace

std::vector<AttentionErrors> compare_attention(const Context& context, const QkvView& exact,
                                               const MixedAttention& mixed) {
  check_mixed(mixed);
  check_exact(exact, mixed);
  const std::vector<std::int64_t> positions = resolve_positions(mixed);
  std::vector<AttentionErrors> errors(static_cast<std::size_t>(mixed.q.num_heads));
  for (int kv_head = 0; kv_head < mixed.window_k.num_heads; ++kv_head) {
    const HeadPair pair(context, exact, mixed, kv_head);
    const std::int64_t size = queries_per_block(pair.g, mixed.window_k.num_tokens);
    for_each_query_block(mixed.q.num_tokens, size, [&](std::int64_t first, std::int64_t count) {
      const auto block_positions =
          std::span(positions).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
      const std::vector<RowErrors> rows = compare_block(context, pair, {first, count, block_positions});
      for (std::size_t row = 0; row < rows.size(); ++row) {
        add_row(rows[row], errors[static_cast<std::size_t>(kv_head * pair.g) + row % static_cast<std::size_t>(pair.g)]);
      }
    });
  }
  return errors;
}

}  // namespace oscar::cuda
