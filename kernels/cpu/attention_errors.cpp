// SPDX-License-Identifier: MIT
// compare_attention(): errors of mixed-precision attention against exact causal attention, in fp64.
#include <algorithm>
#include <cmath>

#include "base/threads.hpp"
#include "kernels/cpu/compared_rows.hpp"
#include "kernels/cpu/mixed_block.hpp"
#include "kernels/cpu/ops.hpp"

namespace oscar::cpu {
namespace {

/// Everything of one KV head that its query blocks share.
struct ComparedHead {
  std::vector<double> k, v;  // native
  std::vector<double> window_k, window_v, native_from_rotated;
  std::vector<std::vector<double>> history_k, history_v;  // by codec; empty: as the windows store it
  std::int64_t dim, value_dim;

  ComparedHead(const QkvView& exact, const MixedAttention& mixed, const Histories& keys, const Histories& values,
               int kv_head)
      : k(load_head<double>(exact.k, kv_head)),
        v(load_head<double>(exact.v, kv_head)),
        window_k(load_head<double>(mixed.window_k, kv_head)),
        window_v(load_head<double>(mixed.window_v, kv_head)),
        native_from_rotated(restoring_matrix<double>(mixed, kv_head)),
        history_k(load(keys, kv_head, exact.k.head_dim, mixed.precision)),
        history_v(load(values, kv_head, exact.v.head_dim, mixed.precision)),
        dim(exact.k.head_dim),
        value_dim(exact.v.head_dim) {}

  [[nodiscard]] MixedRows<double> keys(std::size_t codec) const { return {window_k, history_k[codec], dim}; }
  [[nodiscard]] MixedRows<double> values(std::size_t codec) const { return {window_v, history_v[codec], value_dim}; }

 private:
  static std::vector<std::vector<double>> load(const Histories& histories, int kv_head, std::int64_t dim,
                                               Precision precision) {
    std::vector<std::vector<double>> all;
    for (const auto& history : histories.rows) all.push_back(load_history<double>(history, kv_head, dim, precision));
    return all;
  }
};

/// Query heads of a block at most, which read keys and values together: copies of those cost little beside the products
/// of so many rows. Fewer where scores of a block would take more than kScoreBytes.
constexpr std::int64_t kHeadsPerBlock = 4, kScoreBytes = 4 << 20;

/// Some queries of some heads that share keys, with the keys before them. A row is a query of a head: all queries of
/// the first head come first.
struct QueryBlock {
  std::span<const std::int64_t> query_positions;
  std::int64_t first = 0;  // of the queries
  int first_head = 0, heads = 0;
  std::vector<std::int64_t> positions;  // of rows

  QueryBlock(std::span<const std::int64_t> of_queries, std::int64_t first_query, int head, int count)
      : query_positions(of_queries), first(first_query), first_head(head), heads(count) {
    for (int h = 0; h < count; ++h) positions.insert(positions.end(), of_queries.begin(), of_queries.end());
  }
  [[nodiscard]] std::size_t head_of(std::size_t row) const { return row / query_positions.size(); }
  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(positions.size()); }
  [[nodiscard]] std::int64_t keys() const { return positions.back() + 1; }
  [[nodiscard]] std::vector<double> queries(const HeadsView& q) const {
    const HeadsView asked = q.tokens(first, first + static_cast<std::int64_t>(query_positions.size()));
    std::vector<double> all;
    for (int h = 0; h < heads; ++h) {
      const std::vector<double> head = load_head<double>(asked, first_head + h);
      all.insert(all.end(), head.begin(), head.end());
    }
    return all;
  }
  /// Of a row of a matrix (rows, keys): the part for the keys that the query sees.
  template <class Matrix>
  [[nodiscard]] auto seen(Matrix& matrix, std::size_t row) const {
    return std::span(matrix).subspan(row * static_cast<std::size_t>(keys()),
                                     static_cast<std::size_t>(positions[row]) + 1);
  }
  void clear_unseen(std::vector<double>& matrix, std::size_t row) const {
    const auto width = static_cast<std::size_t>(keys()), count = static_cast<std::size_t>(positions[row]) + 1;
    const std::span<double> unseen = std::span(matrix).subspan(row * width + count, width - count);
    std::fill(unseen.begin(), unseen.end(), 0.0);
  }
};

/// What attention over the native rows gives; the same for all candidates.
struct ExactBlock {
  std::vector<double> scores, probabilities, outputs;  // (rows, keys), zero behind what is seen; (rows, d_v)
  std::vector<ExactRow> rows;

  void take(const HeadsView& q, const ComparedHead& shared, const QueryBlock& block) {
    const std::int64_t n = block.rows(), keys = block.keys(), dim = shared.dim, value_dim = shared.value_dim;
    scores.resize(static_cast<std::size_t>(n * keys));
    probabilities.resize(scores.size());
    outputs.resize(static_cast<std::size_t>(n * value_dim));
    rows.clear();
    gemm({.m = n, .n = keys, .k = dim, .b = Transpose::kYes, .alpha = 1.0 / std::sqrt(static_cast<double>(dim))},
         block.queries(q).data(), dim, shared.k.data(), dim, scores.data(), keys);
    for (std::size_t i = 0; i < block.positions.size(); ++i) {
      rows.push_back(exact_row(block.seen(scores, i), block.seen(probabilities, i)));
      block.clear_unseen(probabilities, i);
    }
    gemm({.m = n, .n = value_dim, .k = keys}, probabilities.data(), keys, shared.v.data(), value_dim, outputs.data(),
         value_dim);
  }
};

/// Errors of each head by one key codec, outputs apart; mixed_weights becomes the probabilities (rows, keys).
std::vector<AttentionErrors> compare_scores(const MixedAttention& mixed, const std::vector<double>& mixed_q,
                                            const MixedRows<double>& keys, const QueryBlock& block,
                                            const ExactBlock& exact, std::vector<double>& mixed_weights) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(keys.dim));
  mixed_scores(mixed_q.data(), keys, block.positions, mixed.windows, scale, mixed_weights);
  std::vector<AttentionErrors> errors(static_cast<std::size_t>(block.heads));
  std::vector<double> scratch;
  for (std::size_t i = 0; i < block.positions.size(); ++i) {
    compare_row(exact.rows[i], block.seen(exact.scores, i), block.seen(exact.probabilities, i),
                block.seen(mixed_weights, i), mixed.windows, scratch, errors[block.head_of(i)]);
    block.clear_unseen(mixed_weights, i);
  }
  return errors;
}

void compare_outputs(const MixedAttention& mixed, const ComparedHead& shared, const MixedRows<double>& values,
                     const QueryBlock& block, const ExactBlock& exact, std::vector<double>& mixed_weights,
                     std::vector<AttentionErrors>& errors) {
  std::vector<double> mixed_out(exact.outputs.size());
  mixed_outputs(mixed_weights, values, block.positions, mixed.windows, mixed_out.data());
  restore_outputs<double>(mixed_out, block.rows(), shared.value_dim, shared.native_from_rotated, mixed.precision);
  const auto size = static_cast<std::size_t>(shared.value_dim);
  for (std::size_t i = 0; i < block.positions.size(); ++i) {
    compare_output(std::span(exact.outputs).subspan(i * size, size), std::span(mixed_out).subspan(i * size, size),
                   errors[block.head_of(i)]);
  }
}

/// [candidate][head of the block]. Scores are compared once for each key codec.
std::vector<std::vector<AttentionErrors>> compare_block(const QkvView& exact, const MixedAttention& mixed,
                                                        const Histories& keys, const Histories& values,
                                                        const ComparedHead& shared, const QueryBlock& block) {
  // Large: fresh memory would be cleared for each block.
  thread_local ExactBlock exact_block;
  thread_local std::vector<double> mixed_weights;
  exact_block.take(exact.q, shared, block);
  const std::vector<double> mixed_q = block.queries(mixed.q);
  std::vector<std::vector<AttentionErrors>> errors(keys.of_candidate.size());
  for (std::size_t codec = 0; codec < keys.rows.size(); ++codec) {
    const std::vector<AttentionErrors> of_scores =
        compare_scores(mixed, mixed_q, shared.keys(codec), block, exact_block, mixed_weights);
    for (std::size_t i = 0; i < errors.size(); ++i) {
      if (keys.of_candidate[i] != codec) continue;
      errors[i] = of_scores;
      compare_outputs(mixed, shared, shared.values(values.of_candidate[i]), block, exact_block, mixed_weights,
                      errors[i]);
    }
  }
  return errors;
}

}  // namespace

std::vector<std::vector<AttentionErrors>> compare_attention(const QkvView& exact, const MixedAttention& mixed,
                                                            const Histories& keys, const Histories& values) {
  check_mixed(mixed);
  check_exact(exact, mixed);
  const std::vector<std::int64_t> positions = resolve_positions(mixed);
  const std::int64_t group = mixed.q.num_heads / mixed.window_k.num_heads;
  const std::int64_t head_bytes = kQueriesPerBlock * mixed.window_k.num_tokens * 8 + 1;  // of scores
  const std::int64_t at_once = std::clamp<std::int64_t>(kScoreBytes / head_bytes, 1, std::min(kHeadsPerBlock, group));
  const std::int64_t parts_of_group = (group + at_once - 1) / at_once;
  const std::int64_t blocks = (mixed.q.num_tokens + kQueriesPerBlock - 1) / kQueriesPerBlock;
  std::vector<std::vector<AttentionErrors>> errors(
      keys.of_candidate.size(), std::vector<AttentionErrors>(static_cast<std::size_t>(mixed.q.num_heads)));
  for_each_kv_head(mixed.window_k.num_heads, [&](int kv_head) {
    const ComparedHead shared(exact, mixed, keys, values, kv_head);
    const auto block_of = [&](std::size_t task) {
      const std::int64_t first = static_cast<std::int64_t>(task) % blocks * kQueriesPerBlock;
      const std::int64_t count = std::min(kQueriesPerBlock, mixed.q.num_tokens - first);
      const std::int64_t head = static_cast<std::int64_t>(task) / blocks * at_once;
      const auto own = std::span(positions).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
      return QueryBlock(own, first, static_cast<int>(kv_head * group + head),
                        static_cast<int>(std::min(at_once, group - head)));
    };
    std::vector<std::vector<std::vector<AttentionErrors>>> parts(static_cast<std::size_t>(blocks * parts_of_group));
    parallel_for(parts.size(), [&](std::size_t i) {
      const std::size_t task = parts.size() - 1 - i;  // late queries see most keys: they come first
      parts[task] = compare_block(exact, mixed, keys, values, shared, block_of(task));
    });
    for (std::size_t task = 0; task < parts.size(); ++task) {
      const auto first_head = static_cast<std::size_t>(block_of(task).first_head);
      for (std::size_t i = 0; i < errors.size(); ++i) {
        for (std::size_t h = 0; h < parts[task][i].size(); ++h) errors[i][first_head + h].add(parts[task][i][h]);
      }
    }
  });
  return errors;
}

}  // namespace oscar::cpu
