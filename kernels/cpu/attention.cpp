// SPDX-License-Identifier: MIT
// attend(): softmax(scores) values over mixed-precision keys and values, in fp32, block by block of queries.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/errors.hpp"
#include "base/exp.hpp"
#include "base/threads.hpp"
#include "kernels/cpu/mixed_attention.hpp"
#include "kernels/cpu/ops.hpp"

namespace oscar::cpu {
namespace {

/// Maxima and sums go side by side in as many lanes as a vector register holds floats.
constexpr std::size_t kLanes = 16;

double sum_of(std::span<const float> values) {
  std::array<double, kLanes> lanes{};
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane];
  }
  for (; i < values.size(); ++i) lanes[0] += values[i];
  return std::accumulate(lanes.begin(), lanes.end(), 0.0);
}

/// Scores of the keys that a query sees -> their shares of the softmax. sink: -infinity for none.
void softmax(std::span<float> seen, float sink) {
  const float highest = std::max(highest_of(seen.data(), seen.size()), sink);
  for (float& score : seen) score -= highest;
  exp_in_place(seen);
  const auto scale = static_cast<float>(1.0 / (sum_of(seen) + std::exp(double{sink} - highest)));
  for (float& weight : seen) weight *= scale;
}

/// Scores of keys [0, position] -> probabilities; keys that the query does not see get 0.
void causal_softmax(std::span<float> row, std::int64_t position, const ScoreRule* rule, int head) {
  const std::int64_t first =
      rule != nullptr && rule->reach > 0 ? std::max<std::int64_t>(0, position - rule->reach + 1) : 0;
  const std::span<float> seen =
      row.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(position - first + 1));
  if (rule != nullptr && rule->soft_cap > 0) {
    const auto cap = static_cast<float>(rule->soft_cap);
    for (float& score : seen) score = cap * std::tanh(score / cap);
  }
  const bool has_sink = rule != nullptr && !rule->sinks.empty();
  softmax(seen, has_sink ? rule->sinks[static_cast<std::size_t>(head)] : -INFINITY);
  std::fill(row.begin(), row.begin() + first, 0.0F);
  std::fill(row.begin() + position + 1, row.end(), 0.0F);
}

/// Everything of one KV head that its query blocks share.
struct AttendedHead {
  std::vector<float> window_k, history_k, window_v, history_v, native_from_rotated;
  MixedRows<float> k, v;

  AttendedHead(const MixedAttention& mixed, int kv_head)
      : window_k(load_head<float>(mixed.window_k, kv_head)),
        history_k(load_history<float>(mixed.history_k, kv_head, mixed.window_k.head_dim, mixed.precision)),
        window_v(load_head<float>(mixed.window_v, kv_head)),
        history_v(load_history<float>(mixed.history_v, kv_head, mixed.window_v.head_dim, mixed.precision)),
        native_from_rotated(restoring_matrix<float>(mixed, kv_head)),
        k(window_k, history_k, mixed.window_k.head_dim),
        v(window_v, history_v, mixed.window_v.head_dim) {}
};

/// All query heads of a KV head at once, so that a product reads its keys and values once for all of them.
void attend_block(const MixedAttention& mixed, const AttendedHead& shared, std::span<const std::int64_t> positions,
                  std::int64_t first_query, int kv_head, std::span<float> out) {
  const auto queries = static_cast<std::int64_t>(positions.size());
  const int group = mixed.q.num_heads / mixed.window_k.num_heads;
  const HeadsView asked = mixed.q.tokens(first_query, first_query + queries);
  std::vector<float> q;
  std::vector<std::int64_t> row_positions;
  for (int g = 0; g < group; ++g) {
    const std::vector<float> head = load_head<float>(asked, kv_head * group + g);
    q.insert(q.end(), head.begin(), head.end());
    row_positions.insert(row_positions.end(), positions.begin(), positions.end());
  }
  thread_local std::vector<float> weights;  // large: fresh memory would be cleared, page by page, for each block
  const double scale = 1.0 / std::sqrt(static_cast<double>(mixed.q.head_dim));
  mixed_scores(q.data(), shared.k, row_positions, mixed.windows, scale, weights);
  const std::size_t keys = weights.size() / row_positions.size();
  for (std::size_t i = 0; i < row_positions.size(); ++i) {
    const int head = kv_head * group + static_cast<int>(i / positions.size());
    causal_softmax(std::span(weights).subspan(i * keys, keys), row_positions[i], mixed.scores, head);
  }
  const std::int64_t value_dim = shared.v.dim;
  std::vector<float> outputs(row_positions.size() * static_cast<std::size_t>(value_dim));
  mixed_outputs(weights, shared.v, row_positions, mixed.windows, outputs.data());
  restore_outputs<float>(outputs, group * queries, value_dim, shared.native_from_rotated, mixed.precision);
  for (std::int64_t row = 0; row < group * queries; ++row) {
    const std::int64_t query = first_query + row % queries, head = kv_head * group + row / queries;
    std::copy_n(outputs.data() + row * value_dim, value_dim,
                out.data() + (query * mixed.q.num_heads + head) * value_dim);
  }
}

}  // namespace

void attend(const MixedAttention& mixed, std::span<float> out) {
  check_mixed(mixed);
  OSCAR_CHECK(out.size() == static_cast<std::size_t>(mixed.q.num_tokens) * mixed.q.num_heads * mixed.window_v.head_dim);
  const std::vector<std::int64_t> positions = resolve_positions(mixed);
  const std::int64_t blocks = (mixed.q.num_tokens + kQueriesPerBlock - 1) / kQueriesPerBlock;
  for_each_kv_head(mixed.window_k.num_heads, [&](int kv_head) {
    const AttendedHead shared(mixed, kv_head);
    parallel_for(static_cast<std::size_t>(blocks), [&](std::size_t i) {
      // Late queries see most keys: they come first.
      const std::int64_t first = (blocks - 1 - static_cast<std::int64_t>(i)) * kQueriesPerBlock;
      const std::int64_t count = std::min(kQueriesPerBlock, mixed.q.num_tokens - first);
      attend_block(mixed, shared,
                   std::span(positions).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
                   first, kv_head, out);
    });
  });
}

}  // namespace oscar::cpu
