// SPDX-License-Identifier: MIT
// Second moments of queries and keys, weighted by what softmax feels of an error in a score: p (1 - p), over the keys
// of the quantised history. Partial sums are added in the order of the blocks, and keys sequence by sequence.
// Second moments. Work is cut into slabs of a fixed number of tokens; each slab has its own partial sum, and partial
// sums are added in slab order, so the number of threads changes no bit.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/errors.hpp"
#include "base/exp.hpp"
#include "base/threads.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cpu/ops.hpp"
#include "kernels/cpu/products.hpp"
#include "kernels/types.hpp"

namespace oscar::cpu {
namespace {

constexpr std::int64_t kSlabTokens = 2048;  // one task
constexpr std::int64_t kWaveSlabs = 16;     // bounds the memory of partial sums
constexpr std::int64_t kBlockRows =
    256;  // rows converted at a time: 256 KB of doubles at d = 128, which the cache holds

/// Sums over [0, num_tokens) for every head: slab(head, begin, end, upper) adds its tokens to an upper triangle.
void sum_slabs(std::int64_t num_tokens, MatrixStack& grams,
               const std::function<void(int, std::int64_t, std::int64_t, double*)>& slab) {
  const std::size_t size = static_cast<std::size_t>(grams.dim) * grams.dim;
  for (std::int64_t first = 0; first < num_tokens; first += kSlabTokens * kWaveSlabs) {
    const std::int64_t last = std::min(first + kSlabTokens * kWaveSlabs, num_tokens);
    const auto slabs = static_cast<std::size_t>((last - first + kSlabTokens - 1) / kSlabTokens);
    std::vector<double> partials(slabs * grams.count * size);
    parallel_for(slabs * grams.count, [&](std::size_t task) {
      const std::int64_t begin = first + static_cast<std::int64_t>(task % slabs) * kSlabTokens;
      slab(static_cast<int>(task / slabs), begin, std::min(begin + kSlabTokens, last), &partials[task * size]);
    });
    parallel_for(static_cast<std::size_t>(grams.count), [&](std::size_t head) {
      for (std::size_t i = 0; i < slabs; ++i) {
        add_symmetric(std::span(partials).subspan((head * slabs + i) * size, size), grams[static_cast<int>(head)],
                      grams.dim);
      }
    });
  }
}

/// Tokens [begin, begin + count), query heads [head * g, head * g + g) as doubles (count * g, head_dim).
void group_rows(HeadsView x, int head, int g, std::int64_t begin, std::int64_t count, double* out) {
  const auto row_size = static_cast<std::size_t>(g) * x.head_dim;
  for (std::int64_t t = 0; t < count; ++t) {
    const std::size_t start = (static_cast<std::size_t>(begin + t) * x.num_heads + head * g) * x.head_dim;
    doubles_from(x.dtype, x.data + start * size_of(x.dtype), row_size, out + t * static_cast<std::int64_t>(row_size));
  }
}

/// energies[t, h] = x[t, h] forms[h] x[t, h]^T, (num_tokens, num_heads).
std::vector<double> row_energies(HeadsView x, const MatrixStack& forms) {
  std::vector<double> energies(static_cast<std::size_t>(x.num_tokens) * x.num_heads);
  const int d = x.head_dim;
  const std::int64_t blocks = (x.num_tokens + kBlockRows - 1) / kBlockRows;
  parallel_for(static_cast<std::size_t>(blocks * x.num_heads), [&](std::size_t task) {
    const auto head = static_cast<int>(task % static_cast<std::size_t>(x.num_heads));
    const std::int64_t begin = static_cast<std::int64_t>(task) / x.num_heads * kBlockRows;
    const std::int64_t count = std::min(kBlockRows, x.num_tokens - begin);
    std::vector<double> rows(static_cast<std::size_t>(count) * d), products(rows.size());
    x.head_rows(begin, count, head, rows.data());
    gemm({.m = count, .n = d, .k = d}, rows.data(), d, forms[head].data(), d, products.data(), d);
    for (std::int64_t t = 0; t < count; ++t) {
      const double* row = &rows[static_cast<std::size_t>(t) * d];
      const double* product = &products[static_cast<std::size_t>(t) * d];
      double sum = 0;
      for (int i = 0; i < d; ++i) sum += row[i] * product[i];
      energies[static_cast<std::size_t>((begin + t) * x.num_heads + head)] = sum;
    }
  });
  return energies;
}

}  // namespace

// Exact causal attention in fp64, a block of queries of one head at a time, so that memory stays O(block * keys).

/// Some queries of one query head of a sequence, and the keys up to the last of them.
struct CausalBlock {
  SequenceRange sequence;
  std::int64_t first_query = 0;  // relative to the sequence
  int query_head = 0;
  std::int64_t queries = 0;
  [[nodiscard]] std::int64_t keys() const { return first_query + queries; }
};

/// How many rows are added up side by side.
inline constexpr std::int64_t kRowsAtOnce = 4;
/// Blocks whose partial sums are kept at a time.
inline constexpr std::size_t kBlocksPerWave = 64;

/// values -= the highest of them.
OSCAR_VECTOR_CLONES void shift_by_highest(double* values, std::int64_t count) {
  const double highest = highest_of(values, static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[i] -= highest;
}

OSCAR_VECTOR_CLONES void divide(double* values, std::int64_t count, double by) {
  for (std::int64_t i = 0; i < count; ++i) values[i] /= by;
}

/// sums[r] = sum of values [0, length + r) of row r in their order, for up to kRowsAtOnce rows that lie `step` apart:
/// an addition waits for the one before, but not for those of other rows.
void add_growing_rows(const double* rows, std::int64_t count, std::int64_t step, std::int64_t length, double* sums) {
  std::array<double, kRowsAtOnce> totals{};
  std::int64_t common = 0;
  if (count == kRowsAtOnce) {
    for (; common < length; ++common) {
      for (std::int64_t r = 0; r < kRowsAtOnce; ++r) totals[r] += rows[r * step + common];
    }
  }
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t i = common; i < length + r; ++i) totals[r] += rows[r * step + i];
    sums[r] = totals[r];
  }
}

namespace {

constexpr std::int64_t kQueries = 256;

/// Row i of scores (queries, keys) keeps keys 0 … first_key + i.
void causal_softmax(double* scores, std::int64_t queries, std::int64_t keys, std::int64_t first_key) {
  for (std::int64_t first = 0; first < queries; first += kRowsAtOnce) {
    const std::int64_t count = std::min(kRowsAtOnce, queries - first), seen = first_key + first + 1;
    double* const rows = scores + first * keys;
    for (std::int64_t r = 0; r < count; ++r) {
      shift_by_highest(rows + r * keys, seen + r);
      exp_in_place(std::span(rows + r * keys, static_cast<std::size_t>(seen + r)));
    }
    std::array<double, kRowsAtOnce> sums;
    add_growing_rows(rows, count, keys, seen, sums.data());
    for (std::int64_t r = 0; r < count; ++r) {
      divide(rows + r * keys, seen + r, sums[r]);
      std::fill(rows + r * keys + seen + r, rows + (r + 1) * keys, 0.0);
    }
  }
}

std::vector<double> rows_of(const HeadsView& x, std::int64_t begin, std::int64_t count, int head) {
  std::vector<double> rows(static_cast<std::size_t>(count * x.head_dim));
  x.head_rows(begin, count, head, rows.data());
  return rows;
}

/// All blocks, sequence by sequence, head by head.
std::vector<CausalBlock> causal_blocks(std::span<const SequenceRange> sequences, int num_query_heads) {
  std::vector<CausalBlock> blocks;
  for (const SequenceRange& sequence : sequences) {
    for (int head = 0; head < num_query_heads; ++head) {
      for (std::int64_t query = 0; query < sequence.size(); query += kQueries) {
        blocks.push_back({sequence, query, head, std::min(kQueries, sequence.size() - query)});
      }
    }
  }
  return blocks;
}

/// Writes probabilities (queries, keys): causal softmax(q k^T / sqrt(d)). q, k: (queries, d), (keys, d). They are
/// large: callers use the same memory for many blocks, since fresh memory is cleared page by page.
void causal_probabilities(const CausalBlock& block, std::span<const double> q, std::span<const double> k, int head_dim,
                          std::vector<double>& probabilities) {
  const std::int64_t keys = block.keys();
  probabilities.resize(static_cast<std::size_t>(block.queries * keys));
  gemm({.m = block.queries,
        .n = keys,
        .k = head_dim,
        .b = Transpose::kYes,
        .alpha = 1 / std::sqrt(static_cast<double>(head_dim))},
       q.data(), head_dim, k.data(), head_dim, probabilities.data(), keys);
  causal_softmax(probabilities.data(), block.queries, keys, block.first_query);
}

}  // namespace

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
  std::vector<double> base_upper;     // (d, d), of queries before RoPE; empty: not taken
  std::vector<double> key_weights;    // sum of p (1 - p), of the keys up to its last query
  std::vector<double> value_weights;  // sum of p^2, of the same
};

void scale_rows(std::vector<double>& rows, std::span<const double> weights, int dim) {
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] *= std::sqrt(weights[i / static_cast<std::size_t>(dim)]);
}

BlockSums sums_of(const QkvView& qkv, const CausalBlock& block, Windows windows, bool base_queries) {
  const int d = qkv.q.head_dim, head = block.query_head / (qkv.q.num_heads / qkv.k.num_heads);
  const std::int64_t keys = block.keys();
  std::vector<double> q = rows_of(qkv.q, block.sequence.begin + block.first_query, block.queries, block.query_head);
  thread_local std::vector<double> p;
  causal_probabilities(block, q, rows_of(qkv.k, block.sequence.begin, keys, head), d, p);
  BlockSums sums{std::vector<double>(static_cast<std::size_t>(d) * d),
                 {},
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
  if (!base_queries) return sums;
  q = rows_of(qkv.base_q, block.sequence.begin + block.first_query, block.queries, block.query_head);
  scale_rows(q, query_weights, d);
  sums.base_upper.resize(sums.query_upper.size());
  add_gram_upper(q.data(), block.queries, d, sums.base_upper.data());
  return sums;
}

/// gram (d, d) += sum of weight_j x_j^T x_j.
void add_weighted_gram(std::vector<double> rows, std::span<const double> weights, int dim, std::span<double> gram) {
  scale_rows(rows, weights, dim);
  std::vector<double> upper(static_cast<std::size_t>(dim) * static_cast<std::size_t>(dim));
  add_gram_upper(rows.data(), static_cast<std::int64_t>(weights.size()), dim, upper.data());
  add_symmetric(upper, gram, dim);
}

/// The keys of one sequence and KV head, once their weights are complete. sums: (Hkv, d).
void add_keys(const HeadsView& k, SequenceRange sequence, int head, std::span<const double> weights,
              std::span<double> sums, std::span<double> gram) {
  const auto d = static_cast<std::size_t>(k.head_dim);
  std::vector<double> rows = rows_of(k, sequence.begin, sequence.size(), head);
  const auto total = sums.subspan(static_cast<std::size_t>(head) * d, d);
  for (std::size_t i = 0; i < rows.size(); ++i) total[i % d] += weights[i / d] * rows[i];
  add_weighted_gram(std::move(rows), weights, k.head_dim, gram);
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
  const bool values = sums.value.count > 0, base_keys = sums.base_key.count > 0;
  const bool base_queries = sums.base_query.count > 0;
  OSCAR_CHECK(!base_keys || qkv.base_k.num_heads == heads);
  OSCAR_CHECK(!base_queries || qkv.base_q.num_heads == qkv.q.num_heads);
  OSCAR_CHECK(!values || (sums.value.count == heads && sums.value.dim == qkv.v.head_dim));
  for (const SequenceRange& sequence : sequences) {
    const std::vector<CausalBlock> blocks = causal_blocks({&sequence, 1}, qkv.q.num_heads);
    std::vector<std::vector<double>> key_weights(static_cast<std::size_t>(heads),
                                                 std::vector<double>(static_cast<std::size_t>(sequence.size())));
    std::vector<std::vector<double>> value_weights = key_weights;
    for (std::size_t first = 0; first < blocks.size(); first += kBlocksPerWave) {
      std::vector<BlockSums> found(std::min(kBlocksPerWave, blocks.size() - first));
      parallel_for(found.size(),
                   [&](std::size_t i) { found[i] = sums_of(qkv, blocks[first + i], windows, base_queries); });
      for (std::size_t i = 0; i < found.size(); ++i) {
        const int head = blocks[first + i].query_head / g;
        add_symmetric(found[i].query_upper, sums.query[head], d);
        if (base_queries) add_symmetric(found[i].base_upper, sums.base_query[head], d);
        add_to(key_weights[static_cast<std::size_t>(head)], found[i].key_weights);
        add_to(value_weights[static_cast<std::size_t>(head)], found[i].value_weights);
      }
    }
    parallel_for(static_cast<std::size_t>(heads), [&](std::size_t i) {
      const auto head = static_cast<int>(i);
      for (const double weight : key_weights[i]) sums.weight[i] += weight;
      add_keys(qkv.k, sequence, head, key_weights[i], sums.key_sum, sums.key[head]);
      if (base_keys) add_keys(qkv.base_k, sequence, head, key_weights[i], sums.base_key_sum, sums.base_key[head]);
      if (!values) return;
      add_weighted_gram(rows_of(qkv.v, sequence.begin, sequence.size(), head), value_weights[i], qkv.v.head_dim,
                        sums.value[head]);
    });
  }
}

void accumulate_grams(HeadsView x, MatrixStack& grams) {
  OSCAR_CHECK(x.head_dim == grams.dim && x.num_heads % grams.count == 0);
  const int g = x.num_heads / grams.count;
  const std::int64_t block = std::max<std::int64_t>(kBlockRows / g, 1);
  sum_slabs(x.num_tokens, grams, [&](int head, std::int64_t begin, std::int64_t end, double* upper) {
    std::vector<double> rows(static_cast<std::size_t>(block * g) * x.head_dim);
    for (; begin < end; begin += block) {
      const std::int64_t count = std::min(block, end - begin);
      group_rows(x, head, g, begin, count, rows.data());
      add_gram_upper(rows.data(), count * g, x.head_dim, upper);
    }
  });
}

void accumulate_weighted_grams(HeadsView k, const MatrixStack& forms, HeadsView v, MatrixStack& grams,
                               std::span<double> weights) {
  OSCAR_CHECK(k.head_dim == forms.dim && k.num_heads == forms.count && k.num_tokens == v.num_tokens);
  OSCAR_CHECK(v.head_dim == grams.dim && v.num_heads == grams.count && k.num_heads == v.num_heads);
  OSCAR_CHECK(weights.size() == static_cast<std::size_t>(grams.count));
  const std::vector<double> energies = row_energies(k, forms);
  for (std::size_t i = 0; i < energies.size(); ++i) weights[i % weights.size()] += energies[i];
  const std::size_t heads = weights.size();
  sum_slabs(v.num_tokens, grams, [&](int head, std::int64_t begin, std::int64_t end, double* upper) {
    std::vector<double> rows(static_cast<std::size_t>(kBlockRows) * v.head_dim);
    for (; begin < end; begin += kBlockRows) {
      const std::int64_t count = std::min(kBlockRows, end - begin);
      v.head_rows(begin, count, head, rows.data());
      for (std::int64_t t = 0; t < count; ++t) {
        const double energy = energies[static_cast<std::size_t>(begin + t) * heads + static_cast<std::size_t>(head)];
        const double root = std::sqrt(std::max(energy, 0.0));
        for (std::int64_t i = t * v.head_dim; i < (t + 1) * v.head_dim; ++i) rows[static_cast<std::size_t>(i)] *= root;
      }
      add_gram_upper(rows.data(), count, v.head_dim, upper);
    }
  });
}

}  // namespace oscar::cpu
