// SPDX-License-Identifier: MIT
// Second moments of attention outputs: exact causal softmax in fp64, a block of queries at a time. The query heads of
// one KV head are rows of the same products.
#include <cmath>
#include <numeric>

#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/query_blocks.hpp"
#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/softmax.hpp"

namespace oscar::cuda {
namespace {

DeviceBuffer<std::int64_t> consecutive(const Context& context, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(count));
  std::iota(positions.begin(), positions.end(), first);
  return DeviceBuffer<std::int64_t>(context, std::span<const std::int64_t>(positions));
}

/// Adds the outputs of one KV head in one sequence to gram (d_v, d_v).
void add_sequence(const Context& context, const QkvView& sequence, int kv_head, double* gram) {
  const std::int64_t dk = sequence.k.head_dim;
  const std::int64_t dv = sequence.v.head_dim;
  const std::int64_t tokens = sequence.q.num_tokens;
  const int g = sequence.q.num_heads / sequence.k.num_heads;
  const std::int64_t block = std::min(queries_per_block(g, tokens), tokens);
  const DeviceBuffer<double> k = upload_rows<double>(context, sequence.k, {kv_head, 1, 1});
  const DeviceBuffer<double> v = upload_rows<double>(context, sequence.v, {kv_head, 1, 1});
  DeviceBuffer<double> scores(context, static_cast<std::size_t>(block * g * tokens));
  DeviceBuffer<double> outputs(context, static_cast<std::size_t>(block * g * dv));
  for_each_query_block(tokens, block, [&](std::int64_t first, std::int64_t count) {
    const std::int64_t keys = first + count;
    const DeviceBuffer<double> q = upload_rows<double>(context, sequence.q.tokens(first, keys), {kv_head * g, 1, g});
    const DeviceBuffer<std::int64_t> positions = consecutive(context, first, count);
    gemm(context,
         {.m = count * g, .n = keys, .k = dk, .b = Transpose::kYes, .alpha = 1 / std::sqrt(static_cast<double>(dk))},
         q.data(), k.data(), scores.data());
    causal_softmax(context, {positions, g, keys}, scores.data());
    gemm(context, {.m = count * g, .n = dv, .k = keys}, scores.data(), v.data(), outputs.data());
    add_grams(context, outputs.data(), 1, count * g, dv, gram);
  });
}

}  // namespace

void accumulate_output_grams(const Context& context, const QkvView& qkv, std::span<const SequenceRange> sequences,
                             MatrixStack& grams) {
  OSCAR_CHECK(grams.dim == qkv.v.head_dim && grams.count == qkv.k.num_heads);
  OSCAR_CHECK(qkv.q.num_heads % qkv.k.num_heads == 0);
  DeviceBuffer<double> sums(context, grams.data.size());
  sums.fill_with_zeros(context);
  for (const SequenceRange& sequence : sequences) {
    if (sequence.size() == 0) continue;
    for (int head = 0; head < grams.count; ++head) {
      add_sequence(context, qkv.tokens(sequence), head, sums.data() + std::int64_t{head} * grams.dim * grams.dim);
    }
  }
  add_sums(context, sums, grams);
}

}  // namespace oscar::cuda
