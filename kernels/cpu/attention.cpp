// SPDX-License-Identifier: MIT
// attend(): softmax(scores) values over mixed-precision keys and values, in fp32, block by block of queries.
#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "base/threads.hpp"
#include "kernels/cpu/exp.hpp"
#include "kernels/cpu/mixed_block.hpp"
#include "kernels/cpu/ops.hpp"

namespace oscar::cpu {
namespace {

/// Scores of keys [0, position] -> probabilities; later keys get 0.
void causal_softmax(std::span<float> row, std::int64_t position) {
  const std::span<float> seen = row.first(static_cast<std::size_t>(position) + 1);
  const float highest = *std::max_element(seen.begin(), seen.end());
  for (float& score : seen) score -= highest;
  exp_in_place(seen);
  double sum = 0;
  for (const float weight : seen) sum += weight;
  const auto scale = static_cast<float>(1.0 / sum);
  for (float& weight : seen) weight *= scale;
  std::fill(row.begin() + position + 1, row.end(), 0.0F);
}

void attend_block(const MixedAttention& mixed, const MixedHead<float>& shared, std::span<const std::int64_t> positions,
                  std::int64_t first_query, int head, std::span<float> out) {
  const std::int64_t queries = static_cast<std::int64_t>(positions.size());
  const std::int64_t dim = mixed.q.head_dim;
  const std::vector<float> q = load_head<float>(mixed.q.tokens(first_query, first_query + queries), head);
  std::vector<float> weights;
  mixed_scores(q.data(), shared.k, positions, mixed.windows, 1.0 / std::sqrt(static_cast<double>(dim)), weights);
  const std::size_t keys = weights.size() / positions.size();
  for (std::size_t i = 0; i < positions.size(); ++i) {
    causal_softmax(std::span(weights).subspan(i * keys, keys), positions[i]);
  }
  const std::int64_t value_dim = shared.v.dim;
  std::vector<float> outputs(static_cast<std::size_t>(queries * value_dim));
  mixed_outputs(weights, shared.v, positions, mixed.windows, outputs.data());
  restore_outputs<float>(outputs, queries, value_dim, shared.native_from_rotated, mixed.precision);
  for (std::int64_t i = 0; i < queries; ++i) {
    std::copy_n(outputs.data() + i * value_dim, value_dim,
                out.data() + ((first_query + i) * mixed.q.num_heads + head) * value_dim);
  }
}

}  // namespace

void attend(const MixedAttention& mixed, std::span<float> out) {
  check_mixed(mixed);
  OSCAR_CHECK(out.size() == static_cast<std::size_t>(mixed.q.num_tokens) * mixed.q.num_heads * mixed.window_v.head_dim);
  const std::vector<std::int64_t> positions = resolve_positions(mixed);
  const int group = mixed.q.num_heads / mixed.window_k.num_heads;
  const std::int64_t blocks = (mixed.q.num_tokens + kQueriesPerBlock - 1) / kQueriesPerBlock;
  for_each_kv_head(mixed.window_k.num_heads, [&](int kv_head) {
    const MixedHead<float> shared(mixed, kv_head);
    parallel_for(static_cast<std::size_t>(blocks * group), [&](std::size_t task) {
      const std::int64_t first = static_cast<std::int64_t>(task) % blocks * kQueriesPerBlock;
      const std::int64_t count = std::min(kQueriesPerBlock, mixed.q.num_tokens - first);
      const int head = kv_head * group + static_cast<int>(static_cast<std::int64_t>(task) / blocks);
      attend_block(mixed, shared,
                   std::span(positions).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
                   first, head, out);
    });
  });
}

}  // namespace oscar::cpu
