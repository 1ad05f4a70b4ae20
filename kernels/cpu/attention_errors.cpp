// SPDX-License-Identifier: MIT
// compare_attention(): errors of mixed-precision attention against exact causal attention, in fp64.
#include <algorithm>
#include <cmath>

#include "base/exp.hpp"
#include "base/highest.hpp"
#include "base/threads.hpp"
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

struct Softmax {
  double highest = 0, log_sum = 0;
  [[nodiscard]] double log_probability(double score) const {
    return std::max(score - highest - log_sum, kLowestLogProbability);
  }
};

/// weights = exp(scores - max), not yet divided by their sum.
Softmax exponentials(std::span<const double> scores, std::span<double> weights) {
  const double highest = highest_of(scores.data(), scores.size());
  for (std::size_t j = 0; j < scores.size(); ++j) weights[j] = scores[j] - highest;
  exp_in_place(weights);
  double sum = 0;
  for (const double weight : weights) sum += weight;
  return {highest, std::log(sum)};
}

void add_logit_errors(std::span<const double> exact, std::span<const double> approximate, AttentionErrors& errors) {
  double mean_error = 0;
  double mean = 0;
  for (std::size_t j = 0; j < exact.size(); ++j) {
    mean_error += approximate[j] - exact[j];
    mean += exact[j];
  }
  mean_error /= static_cast<double>(exact.size());
  mean /= static_cast<double>(exact.size());
  double error = 0;
  double norm = 0;
  for (std::size_t j = 0; j < exact.size(); ++j) {
    const double e = approximate[j] - exact[j] - mean_error;
    const double s = exact[j] - mean;
    error += e * e;
    norm += s * s;
  }
  errors.logit_error += error;
  errors.logit_norm += norm;
}

/// Probabilities of the keys that the query at the last of them sees.
void add_needles(std::span<const double> exact, std::span<const double> approximate, const Windows& windows,
                 AttentionErrors& errors) {
  const std::size_t recent = std::min(static_cast<std::size_t>(windows.recent), exact.size());
  for (auto j = static_cast<std::size_t>(windows.sink); j < exact.size() - recent; ++j) {
    if (exact[j] < kNeedleShare) continue;
    errors.needle_mass += exact[j];
    errors.needle_kept += std::min(exact[j], approximate[j]);
  }
}

/// Some queries of one head, with the keys before them.
struct QueryBlock {
  std::span<const std::int64_t> positions;
  std::int64_t first = 0;  // of the queries
  int head = 0;

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(positions.size()); }
  [[nodiscard]] std::int64_t keys() const { return positions.back() + 1; }
  [[nodiscard]] std::vector<double> queries(const HeadsView& q) const {
    return load_head<double>(q.tokens(first, first + size()), head);
  }
  /// Of a matrix (queries, keys): the row of query i, and its part for the keys that the query sees.
  template <class Matrix>
  [[nodiscard]] auto row(Matrix& matrix, std::size_t i) const {
    const auto width = static_cast<std::size_t>(keys());
    return std::span(matrix).subspan(i * width, width);
  }
  template <class Matrix>
  [[nodiscard]] auto seen(Matrix& matrix, std::size_t i) const {
    return row(matrix, i).first(static_cast<std::size_t>(positions[i]) + 1);
  }
  void clear_unseen(std::vector<double>& matrix, std::size_t i) const {
    const std::span<double> unseen = row(matrix, i).subspan(static_cast<std::size_t>(positions[i]) + 1);
    std::fill(unseen.begin(), unseen.end(), 0.0);
  }
};

/// What attention over the native rows gives; the same for all candidates.
struct ExactBlock {
  std::vector<double> scores, probabilities, outputs;  // (queries, keys), zero behind what is seen; (queries, d_v)
  std::vector<Softmax> softmax;

  void take(const HeadsView& q, const ComparedHead& shared, const QueryBlock& block) {
    const std::int64_t n = block.size(), keys = block.keys(), dim = shared.dim, value_dim = shared.value_dim;
    scores.resize(static_cast<std::size_t>(n * keys));
    probabilities.resize(scores.size());
    outputs.resize(static_cast<std::size_t>(n * value_dim));
    softmax.clear();
    gemm({.m = n, .n = keys, .k = dim, .b = Transpose::kYes, .alpha = 1.0 / std::sqrt(static_cast<double>(dim))},
         block.queries(q).data(), dim, shared.k.data(), dim, scores.data(), keys);
    for (std::size_t i = 0; i < block.positions.size(); ++i) {
      const std::span<double> p = block.seen(probabilities, i);
      softmax.push_back(exponentials(block.seen(scores, i), p));
      const double scale = std::exp(-softmax.back().log_sum);
      for (double& weight : p) weight *= scale;
      block.clear_unseen(probabilities, i);
    }
    gemm({.m = n, .n = value_dim, .k = keys}, probabilities.data(), keys, shared.v.data(), value_dim, outputs.data(),
         value_dim);
  }
};

/// Scores of one query, of the keys that it sees -> probabilities, in place, and what they add to the errors.
void compare_query(std::span<const double> exact, std::span<const double> p, const Softmax& a,
                   std::span<double> approximate, const Windows& windows, AttentionErrors& errors,
                   std::vector<double>& p_hat) {
  p_hat.resize(approximate.size());
  add_logit_errors(exact, approximate, errors);
  const Softmax b = exponentials(approximate, p_hat);
  const double scale_hat = std::exp(-b.log_sum);
  double kl = 0;
  for (std::size_t j = 0; j < approximate.size(); ++j) {
    kl += p[j] * (a.log_probability(exact[j]) - b.log_probability(approximate[j]));
    approximate[j] = p_hat[j] * scale_hat;
  }
  add_needles(p, approximate, windows, errors);
  errors.softmax_kl += kl;
  errors.query_kl.push_back(kl);
  ++errors.queries;
}

/// One query.
void add_output_errors(std::span<const double> exact, std::span<const double> approximate, AttentionErrors& errors) {
  double norm = 0;
  double approximate_norm = 0;
  double product = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double e = exact[i] - approximate[i];
    errors.output_error += e * e;
    norm += exact[i] * exact[i];
    approximate_norm += approximate[i] * approximate[i];
    product += exact[i] * approximate[i];
  }
  errors.output_norm += norm;
  if (norm > 0 && approximate_norm > 0) errors.output_cosine += product / std::sqrt(norm * approximate_norm);
}

/// Errors by one key codec, outputs apart; mixed_weights becomes the probabilities (queries, keys).
AttentionErrors compare_scores(const MixedAttention& mixed, const std::vector<double>& mixed_q,
                               const MixedRows<double>& keys, const QueryBlock& block, const ExactBlock& exact,
                               std::vector<double>& mixed_weights) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(keys.dim));
  mixed_scores(mixed_q.data(), keys, block.positions, mixed.windows, scale, mixed_weights);
  AttentionErrors errors;
  std::vector<double> scratch;
  for (std::size_t i = 0; i < block.positions.size(); ++i) {
    const std::span<double> seen = block.seen(mixed_weights, i);
    compare_query(block.seen(exact.scores, i), block.seen(exact.probabilities, i), exact.softmax[i], seen,
                  mixed.windows, errors, scratch);
    block.clear_unseen(mixed_weights, i);
  }
  return errors;
}

/// mixed_weights are used up.
void compare_outputs(const MixedAttention& mixed, const ComparedHead& shared, const MixedRows<double>& values,
                     const QueryBlock& block, const ExactBlock& exact, std::vector<double>& mixed_weights,
                     AttentionErrors& errors) {
  std::vector<double> mixed_out(exact.outputs.size());
  mixed_outputs(mixed_weights, values, block.positions, mixed.windows, mixed_out.data());
  restore_outputs<double>(mixed_out, block.size(), shared.value_dim, shared.native_from_rotated, mixed.precision);
  const auto size = static_cast<std::size_t>(shared.value_dim);
  for (std::size_t i = 0; i < mixed_out.size(); i += size) {
    add_output_errors(std::span(exact.outputs).subspan(i, size), std::span(mixed_out).subspan(i, size), errors);
  }
}

/// By candidate. Scores are compared once for each key codec.
std::vector<AttentionErrors> compare_block(const QkvView& exact, const MixedAttention& mixed, const Histories& keys,
                                           const Histories& values, const ComparedHead& shared,
                                           const QueryBlock& block) {
  // Large: fresh memory would be cleared for each block.
  thread_local ExactBlock exact_block;
  thread_local std::vector<double> mixed_weights, used_up;
  exact_block.take(exact.q, shared, block);
  const std::vector<double> mixed_q = block.queries(mixed.q);
  std::vector<AttentionErrors> errors(keys.of_candidate.size());
  for (std::size_t codec = 0; codec < keys.rows.size(); ++codec) {
    const AttentionErrors of_scores =
        compare_scores(mixed, mixed_q, shared.keys(codec), block, exact_block, mixed_weights);
    for (std::size_t i = 0; i < errors.size(); ++i) {
      if (keys.of_candidate[i] != codec) continue;
      errors[i] = of_scores;
      used_up = mixed_weights;
      compare_outputs(mixed, shared, shared.values(values.of_candidate[i]), block, exact_block, used_up, errors[i]);
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
  const int group = mixed.q.num_heads / mixed.window_k.num_heads;
  const std::int64_t blocks = (mixed.q.num_tokens + kQueriesPerBlock - 1) / kQueriesPerBlock;
  std::vector<std::vector<AttentionErrors>> errors(
      keys.of_candidate.size(), std::vector<AttentionErrors>(static_cast<std::size_t>(mixed.q.num_heads)));
  for_each_kv_head(mixed.window_k.num_heads, [&](int kv_head) {
    const ComparedHead shared(exact, mixed, keys, values, kv_head);
    std::vector<std::vector<AttentionErrors>> parts(static_cast<std::size_t>(blocks * group));
    parallel_for(parts.size(), [&](std::size_t task) {
      const std::int64_t first = static_cast<std::int64_t>(task) % blocks * kQueriesPerBlock;
      const std::int64_t count = std::min(kQueriesPerBlock, mixed.q.num_tokens - first);
      const int head = kv_head * group + static_cast<int>(static_cast<std::int64_t>(task) / blocks);
      const auto own = std::span(positions).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
      parts[task] = compare_block(exact, mixed, keys, values, shared, {own, first, head});
    });
    for (std::size_t task = 0; task < parts.size(); ++task) {
      const std::size_t head = static_cast<std::size_t>(kv_head * group) + task / static_cast<std::size_t>(blocks);
      for (std::size_t i = 0; i < errors.size(); ++i) errors[i][head].add(parts[task][i]);
    }
  });
  return errors;
}

}  // namespace oscar::cpu
