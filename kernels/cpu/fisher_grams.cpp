// SPDX-License-Identifier: MIT
// Second moments of queries and keys, weighted by what softmax feels of an error in a score: p (1 - p), over the keys
// of the quantised history. Partial sums are added in the order of the blocks, and keys sequence by sequence.
#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "base/threads.hpp"
#include "base/vector_clones.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cpu/causal_blocks.hpp"
#include "kernels/cpu/ops.hpp"
#include "kernels/cpu/products.hpp"

namespace oscar::cpu {

/// Turns the probabilities p of one query into weights p (1 - p), and adds these, and p^2, to those of the keys.
OSCAR_VECTOR_CLONES void add_key_weights(double* __restrict p, std::int64_t count, double* __restrict key_weights,
                                         double* __restrict value_weights) {
  for (std::int64_t j = 0; j < count; ++j) {
    const double probability = p[j], weight = probability * (1 - probability);
    p[j] = weight;
    key_weights[j] += weight;
    value_weights[j] += probability * probability;
  }
}

namespace {

/// What one block of queries adds.
struct BlockSums {
  std::vector<double> query_upper;    // (d, d)
  std::vector<double> key_weights;    // sum of p (1 - p), of the keys up to its last query
  std::vector<double> value_weights;  // sum of p^2, of the same
};

void scale_rows(std::vector<double>& rows, std::span<const double> weights, int dim) {
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] *= std::sqrt(weights[i / static_cast<std::size_t>(dim)]);
}

BlockSums sums_of(const QkvView& qkv, const CausalBlock& block, Windows windows) {
  const int d = qkv.q.head_dim, head = block.query_head / (qkv.q.num_heads / qkv.k.num_heads);
  const std::int64_t keys = block.keys();
  std::vector<double> q = query_rows(qkv.q, block);
  thread_local std::vector<double> p;
  causal_probabilities(block, q, key_rows(qkv.k, block, head), d, p);
  BlockSums sums{std::vector<double>(static_cast<std::size_t>(d) * d),
                 std::vector<double>(static_cast<std::size_t>(keys)),
                 std::vector<double>(static_cast<std::size_t>(keys))};
  // A query behind its first history key finds one more than the query before.
  std::vector<double> query_weights(static_cast<std::size_t>(block.queries));
  const std::int64_t windows_end = windows.sink + windows.recent - block.first_query;
  for (std::int64_t first = std::max<std::int64_t>(0, windows_end); first < block.queries; first += kRowsAtOnce) {
    const std::int64_t count = std::min(kRowsAtOnce, block.queries - first), found = first - windows_end + 1;
    double* const rows = p.data() + first * keys + windows.sink;
    for (std::int64_t r = 0; r < count; ++r) {
      add_key_weights(rows + r * keys, found + r, sums.key_weights.data() + windows.sink,
                      sums.value_weights.data() + windows.sink);
    }
    add_growing_rows(rows, count, keys, found, query_weights.data() + first);
  }
  scale_rows(q, query_weights, d);
  add_gram_upper(q.data(), block.queries, d, sums.query_upper.data());
  return sums;
}

std::vector<double> rows_of(const HeadsView& x, SequenceRange sequence, int head) {
  std::vector<double> rows(static_cast<std::size_t>(sequence.size()) * static_cast<std::size_t>(x.head_dim));
  x.head_rows(sequence.begin, sequence.size(), head, rows.data());
  return rows;
}

/// gram (d, d) += sum of weight_j x_j^T x_j.
void add_weighted_gram(std::vector<double> rows, std::span<const double> weights, int dim, std::span<double> gram) {
  scale_rows(rows, weights, dim);
  std::vector<double> upper(static_cast<std::size_t>(dim) * static_cast<std::size_t>(dim));
  add_gram_upper(rows.data(), static_cast<std::int64_t>(weights.size()), dim, upper.data());
  add_symmetric(upper, gram, dim);
}

/// The keys of one sequence and KV head, once their weights are complete.
void add_keys(const HeadsView& k, SequenceRange sequence, int head, std::span<const double> weights, FisherSums& sums) {
  const auto d = static_cast<std::size_t>(k.head_dim);
  std::vector<double> rows = rows_of(k, sequence, head);
  const auto total = std::span(sums.key_sum).subspan(static_cast<std::size_t>(head) * d, d);
  for (std::size_t i = 0; i < rows.size(); ++i) total[i % d] += weights[i / d] * rows[i];
  for (const double weight : weights) sums.weight[static_cast<std::size_t>(head)] += weight;
  add_weighted_gram(std::move(rows), weights, k.head_dim, sums.key[head]);
}

void add_to(std::span<double> total, std::span<const double> part) {
  for (std::size_t i = 0; i < part.size(); ++i) total[i] += part[i];
}

}  // namespace

void accumulate_fisher_sums(const QkvView& qkv, std::span<const SequenceRange> sequences, Windows windows,
                            FisherSums& sums) {
  const int heads = qkv.k.num_heads, g = qkv.q.num_heads / heads, d = qkv.k.head_dim;
  OSCAR_CHECK(sums.query.dim == d && sums.query.count == heads &&
              sums.weight.size() == static_cast<std::size_t>(heads));
  const bool values = sums.value.count > 0;
  OSCAR_CHECK(!values || (sums.value.count == heads && sums.value.dim == qkv.v.head_dim));
  for (const SequenceRange& sequence : sequences) {
    const std::vector<CausalBlock> blocks = causal_blocks({&sequence, 1}, qkv.q.num_heads);
    std::vector<std::vector<double>> key_weights(static_cast<std::size_t>(heads),
                                                 std::vector<double>(static_cast<std::size_t>(sequence.size())));
    std::vector<std::vector<double>> value_weights = key_weights;
    for (std::size_t first = 0; first < blocks.size(); first += kBlocksPerWave) {
      std::vector<BlockSums> found(std::min(kBlocksPerWave, blocks.size() - first));
      parallel_for(found.size(), [&](std::size_t i) { found[i] = sums_of(qkv, blocks[first + i], windows); });
      for (std::size_t i = 0; i < found.size(); ++i) {
        const int head = blocks[first + i].query_head / g;
        add_symmetric(found[i].query_upper, sums.query[head], d);
        add_to(key_weights[static_cast<std::size_t>(head)], found[i].key_weights);
        add_to(value_weights[static_cast<std::size_t>(head)], found[i].value_weights);
      }
    }
    parallel_for(static_cast<std::size_t>(heads), [&](std::size_t i) {
      const auto head = static_cast<int>(i);
      add_keys(qkv.k, sequence, head, key_weights[i], sums);
      if (!values) return;
      add_weighted_gram(rows_of(qkv.v, sequence, head), value_weights[i], qkv.v.head_dim, sums.value[head]);
    });
  }
}

}  // namespace oscar::cpu
