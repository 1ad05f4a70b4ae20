// SPDX-License-Identifier: MIT
// compare_attention(): errors of mixed-precision attention against exact causal attention, in fp64.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/errors.hpp"
#include "base/exp.hpp"
#include "base/threads.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cpu/mixed_attention.hpp"
#include "kernels/cpu/ops.hpp"
#include "kernels/types.hpp"

namespace oscar::cpu {

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
  /// Returns the part of a row of a matrix (rows, keys) that is of the keys that the query sees.
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

// What one query tells of attention over a mixed-precision cache beside exact attention, in fp64. Spans of scores and
// probabilities have the keys that the query sees. Sums over keys run in strands (kernels/arguments.hpp).

struct Softmax {
  double highest = 0, log_sum = 0;  // log p = score - highest - log_sum
};

/// What exact attention of a query tells, whatever is compared with it.
struct ExactRow {
  Softmax softmax;
  double score_norm = 0;             // sum of (s - mean s)^2
  std::vector<std::size_t> needles;  // keys with p >= kNeedleShare, those in windows included
};

/// weights = exp(scores - max), not yet divided by their sum.
OSCAR_VECTOR_CLONES static Softmax exponentials(const double* __restrict scores, std::size_t count,
                                                double* __restrict weights) {
  const double highest = highest_of(scores, count);
  for (std::size_t j = 0; j < count; ++j) weights[j] = scores[j] - highest;
  exp_in_place(std::span(weights, count));
  return {highest, std::log(strand_sum(count, [&](std::size_t j) { return weights[j]; }))};
}

OSCAR_VECTOR_CLONES static void scale(const double* from, std::size_t count, double by, double* to) {
  for (std::size_t j = 0; j < count; ++j) to[j] = from[j] * by;
}

/// The sum of (x - mean x)^2, x(j) = term(j).
template <class Term>
[[gnu::always_inline]] inline double squares_from_mean(std::size_t count, const Term& term) {
  const double mean = strand_sum(count, term) / static_cast<double>(count);
  return strand_sum(count, [&](std::size_t j) {
    const double e = term(j) - mean;
    return e * e;
  });
}

OSCAR_VECTOR_CLONES static double variation(const double* x, std::size_t count) {
  return squares_from_mean(count, [=](std::size_t j) { return x[j]; });
}

OSCAR_VECTOR_CLONES static double variation_of_difference(const double* a, const double* b, std::size_t count) {
  return squares_from_mean(count, [=](std::size_t j) { return a[j] - b[j]; });
}

OSCAR_VECTOR_CLONES static double kl_divergence(const double* p, const double* scores, const Softmax& exact,
                                                const double* approximate, const Softmax& other, std::size_t count) {
  const auto log_p = [](double score, const Softmax& softmax) {
    const double log = score - softmax.highest - softmax.log_sum;
    return log < kLowestLogProbability ? kLowestLogProbability : log;  // what is no number stays none
  };
  return strand_sum(count,
                    [&](std::size_t j) { return p[j] * (log_p(scores[j], exact) - log_p(approximate[j], other)); });
}

/// Fills `probabilities` from exact scores.
static ExactRow exact_row(std::span<const double> scores, std::span<double> probabilities) {
  const std::size_t count = scores.size();
  ExactRow row;
  row.softmax = exponentials(scores.data(), count, probabilities.data());
  scale(probabilities.data(), count, std::exp(-row.softmax.log_sum), probabilities.data());
  row.score_norm = variation(scores.data(), count);
  for (std::size_t j = 0; j < count; ++j) {
    if (probabilities[j] >= kNeedleShare) row.needles.push_back(j);
  }
  return row;
}

/// Adds to `errors` what the scores of a query tell, and turns approximate scores into probabilities, in place.
static void compare_row(const ExactRow& row, std::span<const double> scores, std::span<const double> probabilities,
                        std::span<double> approximate, const Windows& windows, std::vector<double>& scratch,
                        AttentionErrors& errors) {
  const std::size_t count = scores.size();
  scratch.resize(count);
  errors.logit_error += variation_of_difference(approximate.data(), scores.data(), count);
  errors.logit_norm += row.score_norm;
  const Softmax softmax = exponentials(approximate.data(), count, scratch.data());
  const double kl = kl_divergence(probabilities.data(), scores.data(), row.softmax, approximate.data(), softmax, count);
  scale(scratch.data(), count, std::exp(-softmax.log_sum), approximate.data());
  const auto sink = static_cast<std::size_t>(windows.sink), recent = static_cast<std::size_t>(windows.recent);
  for (const std::size_t j : row.needles) {
    if (j < sink || j + recent >= count) continue;
    errors.needle_mass += probabilities[j];
    errors.needle_kept += std::min(approximate[j], probabilities[j]);  // not a number where the first is none
  }
  errors.softmax_kl += kl;
  errors.query_kl.push_back(kl);
  ++errors.queries;
}

/// Adds to `errors` what the outputs (d_v) of a query tell.
static void compare_output(std::span<const double> exact, std::span<const double> approximate,
                           AttentionErrors& errors) {
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

namespace {

/// Native rows of one KV head.
struct NativeHead {
  std::vector<double> k, v;
  std::int64_t dim, value_dim;

  NativeHead(const QkvView& exact, int kv_head)
      : k(load_head<double>(exact.k, kv_head)),
        v(load_head<double>(exact.v, kv_head)),
        dim(exact.k.head_dim),
        value_dim(exact.v.head_dim) {}
};

/// What one sequence holds of a KV head.
struct StoredHead {
  const MixedAttention& mixed;
  const std::vector<std::size_t>&key_of_candidate, &value_of_candidate;
  std::vector<double> window_k, window_v, native_from_rotated;
  std::vector<std::vector<double>> history_k, history_v;  // by codec; empty: as the windows store it
  std::int64_t dim, value_dim;

  StoredHead(const ComparedAttention& own, int kv_head)
      : mixed(own.mixed),
        key_of_candidate(own.keys.of_candidate),
        value_of_candidate(own.values.of_candidate),
        window_k(load_head<double>(mixed.window_k, kv_head)),
        window_v(load_head<double>(mixed.window_v, kv_head)),
        native_from_rotated(restoring_matrix<double>(mixed, kv_head)),
        history_k(load(own.keys, kv_head, mixed.window_k.head_dim, mixed.precision)),
        history_v(load(own.values, kv_head, mixed.window_v.head_dim, mixed.precision)),
        dim(mixed.window_k.head_dim),
        value_dim(mixed.window_v.head_dim) {}

  [[nodiscard]] std::size_t candidates() const { return key_of_candidate.size(); }
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

/// What attention over the native rows gives; the same for all sequences and candidates.
struct ExactBlock {
  std::vector<double> scores, probabilities, outputs;  // (rows, keys), zero behind what is seen; (rows, d_v)
  std::vector<ExactRow> rows;

  void take(const HeadsView& q, const NativeHead& shared, const QueryBlock& block) {
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

/// Errors of each head by one key codec, outputs apart; weights becomes the probabilities (rows, keys).
std::vector<AttentionErrors> compare_scores(const StoredHead& stored, const std::vector<double>& q, std::size_t codec,
                                            const QueryBlock& block, const ExactBlock& exact,
                                            std::vector<double>& weights) {
  const Windows& windows = stored.mixed.windows;
  const double scale = 1.0 / std::sqrt(static_cast<double>(stored.dim));
  mixed_scores(q.data(), stored.keys(codec), block.positions, windows, scale, weights);
  std::vector<AttentionErrors> errors(static_cast<std::size_t>(block.heads));
  std::vector<double> scratch;
  for (std::size_t i = 0; i < block.positions.size(); ++i) {
    compare_row(exact.rows[i], block.seen(exact.scores, i), block.seen(exact.probabilities, i), block.seen(weights, i),
                windows, scratch, errors[block.head_of(i)]);
    block.clear_unseen(weights, i);
  }
  return errors;
}

void compare_outputs(const StoredHead& stored, std::size_t codec, const QueryBlock& block, const ExactBlock& exact,
                     std::vector<double>& weights, std::vector<AttentionErrors>& errors) {
  std::vector<double> outputs(exact.outputs.size());
  mixed_outputs(weights, stored.values(codec), block.positions, stored.mixed.windows, outputs.data());
  restore_outputs<double>(outputs, block.rows(), stored.value_dim, stored.native_from_rotated, stored.mixed.precision);
  const auto size = static_cast<std::size_t>(stored.value_dim);
  for (std::size_t i = 0; i < block.positions.size(); ++i) {
    compare_output(std::span(exact.outputs).subspan(i * size, size), std::span(outputs).subspan(i * size, size),
                   errors[block.head_of(i)]);
  }
}

using HeadErrors = std::vector<AttentionErrors>;  // by head
using SequenceErrors = std::vector<HeadErrors>;   // by candidate

/// Scores are compared once for each key codec.
SequenceErrors compare_sequence(const StoredHead& stored, const QueryBlock& block, const ExactBlock& exact) {
  thread_local std::vector<double> weights;  // large: fresh memory would be cleared for each block
  const std::vector<double> q = block.queries(stored.mixed.q);
  SequenceErrors errors(stored.candidates());
  for (std::size_t codec = 0; codec < stored.history_k.size(); ++codec) {
    const HeadErrors of_scores = compare_scores(stored, q, codec, block, exact, weights);
    for (std::size_t i = 0; i < errors.size(); ++i) {
      if (stored.key_of_candidate[i] != codec) continue;
      errors[i] = of_scores;
      compare_outputs(stored, stored.value_of_candidate[i], block, exact, weights, errors[i]);
    }
  }
  return errors;
}

std::vector<SequenceErrors> compare_block(const HeadsView& q, const NativeHead& native,
                                          const std::vector<StoredHead>& sequences, const QueryBlock& block) {
  thread_local ExactBlock exact;
  exact.take(q, native, block);
  std::vector<SequenceErrors> errors;
  for (const StoredHead& stored : sequences) errors.push_back(compare_sequence(stored, block, exact));
  return errors;
}

}  // namespace

std::vector<SequenceErrors> compare_attention(const QkvView& exact, std::span<const ComparedAttention> sequences) {
  std::vector<SequenceErrors> errors;
  for (const ComparedAttention& each : sequences) {
    check_mixed(each.mixed);
    check_exact(exact, each.mixed);
    OSCAR_CHECK(resolve_positions(each.mixed) == resolve_positions(sequences.front().mixed));
    errors.emplace_back(each.keys.of_candidate.size(), HeadErrors(static_cast<std::size_t>(exact.q.num_heads)));
  }
  if (sequences.empty()) return errors;
  const std::vector<std::int64_t> positions = resolve_positions(sequences.front().mixed);
  const std::int64_t queries = exact.q.num_tokens, group = exact.q.num_heads / exact.k.num_heads;
  const std::int64_t head_bytes = kQueriesPerBlock * exact.k.num_tokens * 8 + 1;  // of scores
  const std::int64_t at_once = std::clamp<std::int64_t>(kScoreBytes / head_bytes, 1, std::min(kHeadsPerBlock, group));
  const std::int64_t parts_of_group = (group + at_once - 1) / at_once;
  const std::int64_t blocks = (queries + kQueriesPerBlock - 1) / kQueriesPerBlock;
  for_each_kv_head(exact.k.num_heads, [&](int kv_head) {
    const NativeHead native(exact, kv_head);
    std::vector<StoredHead> stored;
    stored.reserve(sequences.size());
    for (const ComparedAttention& each : sequences) stored.emplace_back(each, kv_head);
    const auto block_of = [&](std::size_t task) {
      const std::int64_t first = static_cast<std::int64_t>(task) % blocks * kQueriesPerBlock;
      const std::int64_t count = std::min(kQueriesPerBlock, queries - first);
      const std::int64_t head = static_cast<std::int64_t>(task) / blocks * at_once;
      const auto own = std::span(positions).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
      return QueryBlock(own, first, static_cast<int>(kv_head * group + head),
                        static_cast<int>(std::min(at_once, group - head)));
    };
    std::vector<std::vector<SequenceErrors>> parts(static_cast<std::size_t>(blocks * parts_of_group));
    parallel_for(parts.size(), [&](std::size_t i) {
      const std::size_t task = parts.size() - 1 - i;  // late queries see most keys: they come first
      parts[task] = compare_block(exact.q, native, stored, block_of(task));
    });
    for (std::size_t task = 0; task < parts.size(); ++task) {
      const auto first_head = static_cast<std::size_t>(block_of(task).first_head);
      for (std::size_t s = 0; s < errors.size(); ++s) {
        for (std::size_t i = 0; i < errors[s].size(); ++i) {
          const HeadErrors& part = parts[task][s][i];
          for (std::size_t h = 0; h < part.size(); ++h) errors[s][i][first_head + h].add(part[h]);
        }
      }
    }
  });
  return errors;
}

}  // namespace oscar::cpu
