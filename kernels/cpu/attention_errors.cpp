// SPDX-License-Identifier: MIT
// compare_attention(): errors of mixed-precision attention against exact causal attention, in fp64.
#include <algorithm>
#include <cmath>

#include "base/threads.hpp"
#include "kernels/cpu/exp.hpp"
#include "kernels/cpu/mixed_block.hpp"
#include "kernels/cpu/ops.hpp"

namespace oscar::cpu {
namespace {

struct ExactHead {
  std::vector<double> k, v;
};

struct Softmax {
  double highest = 0, log_sum = 0;
  [[nodiscard]] double log_probability(double score) const {
    return std::max(score - highest - log_sum, kLowestLogProbability);
  }
};

/// weights = exp(scores - max), not yet divided by their sum.
Softmax exponentials(std::span<const double> scores, std::span<double> weights) {
  const double highest = *std::max_element(scores.begin(), scores.end());
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

/// Scores of one query -> probabilities of both, in place, and what they add to the errors. Keys after `seen` get 0.
void compare_query(std::span<double> exact, std::span<double> approximate, std::size_t seen, const Windows& windows,
                   AttentionErrors& errors, std::vector<double>& scratch) {
  scratch.resize(2 * seen);
  const std::span<double> p = std::span(scratch).first(seen);
  const std::span<double> p_hat = std::span(scratch).subspan(seen, seen);
  add_logit_errors(exact.first(seen), approximate.first(seen), errors);
  const Softmax a = exponentials(exact.first(seen), p);
  const Softmax b = exponentials(approximate.first(seen), p_hat);
  const double scale = std::exp(-a.log_sum);
  const double scale_hat = std::exp(-b.log_sum);
  double kl = 0;
  for (std::size_t j = 0; j < seen; ++j) {
    p[j] *= scale;
    kl += p[j] * (a.log_probability(exact[j]) - b.log_probability(approximate[j]));
    exact[j] = p[j];
    approximate[j] = p_hat[j] * scale_hat;
  }
  add_needles(exact.first(seen), approximate.first(seen), windows, errors);
  std::fill(exact.begin() + static_cast<std::ptrdiff_t>(seen), exact.end(), 0.0);
  std::fill(approximate.begin() + static_cast<std::ptrdiff_t>(seen), approximate.end(), 0.0);
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

AttentionErrors compare_block(const QkvView& exact, const ExactHead& exact_head, const MixedAttention& mixed,
                              const MixedHead<double>& shared, std::span<const std::int64_t> positions,
                              std::int64_t first_query, int head) {
  const auto queries = static_cast<std::int64_t>(positions.size());
  const std::int64_t keys = positions.back() + 1;
  const std::int64_t dim = exact.q.head_dim;
  const std::int64_t value_dim = exact.v.head_dim;
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  const SequenceRange range{first_query, first_query + queries};
  thread_local std::vector<double> weights, mixed_weights;  // large: fresh memory would be cleared for each block
  weights.resize(static_cast<std::size_t>(queries * keys));
  const std::vector<double> q = load_head<double>(exact.q.tokens(range.begin, range.end), head);
  gemm({.m = queries, .n = keys, .k = dim, .b = Transpose::kYes, .alpha = scale}, q.data(), dim, exact_head.k.data(),
       dim, weights.data(), keys);
  const std::vector<double> mixed_q = load_head<double>(mixed.q.tokens(range.begin, range.end), head);
  mixed_scores(mixed_q.data(), shared.k, positions, mixed.windows, scale, mixed_weights);

  AttentionErrors errors;
  std::vector<double> scratch;
  const auto width = static_cast<std::size_t>(keys);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    compare_query(std::span(weights).subspan(i * width, width), std::span(mixed_weights).subspan(i * width, width),
                  static_cast<std::size_t>(positions[i]) + 1, mixed.windows, errors, scratch);
  }
  std::vector<double> outputs(static_cast<std::size_t>(queries * value_dim));
  std::vector<double> mixed_out(outputs.size());
  gemm({.m = queries, .n = value_dim, .k = keys}, weights.data(), keys, exact_head.v.data(), value_dim, outputs.data(),
       value_dim);
  mixed_outputs(mixed_weights, shared.v, positions, mixed.windows, mixed_out.data());
  restore_outputs<double>(mixed_out, queries, value_dim, shared.native_from_rotated, mixed.precision);
  const auto size = static_cast<std::size_t>(value_dim);
  for (std::size_t i = 0; i < outputs.size(); i += size) {
    add_output_errors(std::span(outputs).subspan(i, size), std::span(mixed_out).subspan(i, size), errors);
  }
  return errors;
}

}  // namespace

std::vector<AttentionErrors> compare_attention(const QkvView& exact, const MixedAttention& mixed) {
  check_mixed(mixed);
  check_exact(exact, mixed);
  const std::vector<std::int64_t> positions = resolve_positions(mixed);
  const int group = mixed.q.num_heads / mixed.window_k.num_heads;
  const std::int64_t blocks = (mixed.q.num_tokens + kQueriesPerBlock - 1) / kQueriesPerBlock;
  std::vector<AttentionErrors> errors(static_cast<std::size_t>(mixed.q.num_heads));
  for_each_kv_head(mixed.window_k.num_heads, [&](int kv_head) {
    const MixedHead<double> shared(mixed, kv_head);
    const ExactHead exact_head{load_head<double>(exact.k, kv_head), load_head<double>(exact.v, kv_head)};
    std::vector<AttentionErrors> parts(static_cast<std::size_t>(blocks * group));
    parallel_for(parts.size(), [&](std::size_t task) {
      const std::int64_t first = static_cast<std::int64_t>(task) % blocks * kQueriesPerBlock;
      const std::int64_t count = std::min(kQueriesPerBlock, mixed.q.num_tokens - first);
      const int head = kv_head * group + static_cast<int>(static_cast<std::int64_t>(task) / blocks);
      parts[task] = compare_block(
          exact, exact_head, mixed, shared,
          std::span(positions).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)), first, head);
    });
    for (std::size_t task = 0; task < parts.size(); ++task) {
      errors[static_cast<std::size_t>(kv_head * group) + task / static_cast<std::size_t>(blocks)].add(parts[task]);
    }
  });
  return errors;
}

}  // namespace oscar::cpu
