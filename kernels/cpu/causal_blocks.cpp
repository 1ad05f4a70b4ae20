// SPDX-License-Identifier: MIT
#include "kernels/cpu/causal_blocks.hpp"

#include <algorithm>
#include <cmath>

#include "base/exp.hpp"
#include "kernels/cpu/products.hpp"

namespace oscar::cpu {
namespace {

constexpr std::int64_t kQueries = 256;

/// Row i of scores (queries, keys) keeps keys 0 … first_key + i.
void causal_softmax(double* scores, std::int64_t queries, std::int64_t keys, std::int64_t first_key) {
  for (std::int64_t i = 0; i < queries; ++i) {
    const std::span<double> row(scores + i * keys, static_cast<std::size_t>(keys));
    const std::span<double> seen = row.first(static_cast<std::size_t>(first_key + i + 1));
    const double top = *std::max_element(seen.begin(), seen.end());
    for (double& s : seen) s -= top;
    exp_in_place(seen);
    double sum = 0;
    for (const double p : seen) sum += p;
    for (double& p : seen) p /= sum;
    std::fill(row.begin() + static_cast<std::ptrdiff_t>(seen.size()), row.end(), 0.0);
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

std::vector<double> causal_probabilities(const CausalBlock& block, std::span<const double> q, std::span<const double> k,
                                         int head_dim) {
  const std::int64_t keys = block.keys();
  std::vector<double> scores(static_cast<std::size_t>(block.queries * keys));
  gemm({.m = block.queries,
        .n = keys,
        .k = head_dim,
        .b = Transpose::kYes,
        .alpha = 1 / std::sqrt(static_cast<double>(head_dim))},
       q.data(), head_dim, k.data(), head_dim, scores.data(), keys);
  causal_softmax(scores.data(), block.queries, keys, block.first_query);
  return scores;
}

std::vector<double> query_rows(const HeadsView& q, const CausalBlock& block) {
  return rows_of(q, block.sequence.begin + block.first_query, block.queries, block.query_head);
}

std::vector<double> key_rows(const HeadsView& x, const CausalBlock& block, int kv_head) {
  return rows_of(x, block.sequence.begin, block.keys(), kv_head);
}

}  // namespace oscar::cpu
