// SPDX-License-Identifier: MIT
#include "kernels/cpu/causal_blocks.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/exp.hpp"
#include "base/vector_clones.hpp"
#include "kernels/cpu/products.hpp"

namespace oscar::cpu {

/// values -= the highest of them.
OSCAR_VECTOR_CLONES void shift_by_highest(double* values, std::int64_t count) {
  const double highest = highest_of(values, static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[i] -= highest;
}

OSCAR_VECTOR_CLONES void divide(double* values, std::int64_t count, double by) {
  for (std::int64_t i = 0; i < count; ++i) values[i] /= by;
}

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

}  // namespace

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

std::vector<double> query_rows(const HeadsView& q, const CausalBlock& block) {
  return rows_of(q, block.sequence.begin + block.first_query, block.queries, block.query_head);
}

std::vector<double> key_rows(const HeadsView& x, const CausalBlock& block, int kv_head) {
  return rows_of(x, block.sequence.begin, block.keys(), kv_head);
}

}  // namespace oscar::cpu
