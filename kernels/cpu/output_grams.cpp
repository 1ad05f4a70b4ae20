// SPDX-License-Identifier: MIT
// Second moments of attention outputs. Partial sums are added in the order of the blocks.
#include <algorithm>

#include "base/check.hpp"
#include "base/threads.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cpu/causal_blocks.hpp"
#include "kernels/cpu/ops.hpp"
#include "kernels/cpu/products.hpp"

namespace oscar::cpu {
namespace {

void add_block(const QkvView& qkv, const CausalBlock& block, double* upper) {
  const int dv = qkv.v.head_dim, head = block.query_head / (qkv.q.num_heads / qkv.k.num_heads);
  thread_local std::vector<double> probabilities;
  causal_probabilities(block, query_rows(qkv.q, block), key_rows(qkv.k, block, head), qkv.k.head_dim, probabilities);
  const std::vector<double> v = key_rows(qkv.v, block, head);
  std::vector<double> outputs(static_cast<std::size_t>(block.queries * dv));
  gemm({.m = block.queries, .n = dv, .k = block.keys()}, probabilities.data(), block.keys(), v.data(), dv,
       outputs.data(), dv);
  add_gram_upper(outputs.data(), block.queries, dv, upper);
}

}  // namespace

void accumulate_output_grams(const QkvView& qkv, std::span<const SequenceRange> sequences, MatrixStack& grams) {
  OSCAR_CHECK(grams.dim == qkv.v.head_dim && grams.count == qkv.k.num_heads);
  const int d = grams.dim, g = qkv.q.num_heads / qkv.k.num_heads;
  const std::size_t size = static_cast<std::size_t>(d) * d;
  const std::vector<CausalBlock> blocks = causal_blocks(sequences, qkv.q.num_heads);
  for (std::size_t first = 0; first < blocks.size(); first += kBlocksPerWave) {
    const std::size_t count = std::min(kBlocksPerWave, blocks.size() - first);
    std::vector<double> partials(count * size);
    parallel_for(count, [&](std::size_t i) { add_block(qkv, blocks[first + i], &partials[i * size]); });
    for (std::size_t i = 0; i < count; ++i) {
      add_symmetric(std::span(partials).subspan(i * size, size), grams[blocks[first + i].query_head / g], d);
    }
  }
}

}  // namespace oscar::cpu
