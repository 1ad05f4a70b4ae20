// SPDX-License-Identifier: MIT
// Exact causal attention in fp64, a block of queries of one head at a time, so that memory stays O(block * keys): what
// the moments that look at probabilities share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/types.hpp"

namespace oscar::cpu {

/// Some queries of one query head of a sequence, and the keys up to the last of them.
struct CausalBlock {
  SequenceRange sequence;
  std::int64_t first_query = 0;  // relative to the sequence
  int query_head = 0;
  std::int64_t queries = 0;
  [[nodiscard]] std::int64_t keys() const { return first_query + queries; }
};

/// All blocks, sequence by sequence, head by head.
[[nodiscard]] std::vector<CausalBlock> causal_blocks(std::span<const SequenceRange> sequences, int num_query_heads);

/// Writes probabilities (queries, keys): causal softmax(q k^T / sqrt(d)). q, k: (queries, d), (keys, d). They are
/// large: callers use the same memory for many blocks, since fresh memory is cleared page by page.
void causal_probabilities(const CausalBlock& block, std::span<const double> q, std::span<const double> k, int head_dim,
                          std::vector<double>& probabilities);

/// How many rows are added up side by side.
inline constexpr std::int64_t kRowsAtOnce = 4;
/// sums[r] = sum of values [0, length + r) of row r in their order, for up to kRowsAtOnce rows that lie `step` apart:
/// an addition waits for the one before, but not for those of other rows.
void add_growing_rows(const double* rows, std::int64_t count, std::int64_t step, std::int64_t length, double* sums);

/// Rows of one head of the block's queries, or of its keys (or values).
[[nodiscard]] std::vector<double> query_rows(const HeadsView& q, const CausalBlock& block);
[[nodiscard]] std::vector<double> key_rows(const HeadsView& x, const CausalBlock& block, int kv_head);

/// Blocks whose partial sums are kept at a time.
inline constexpr std::size_t kBlocksPerWave = 64;

}  // namespace oscar::cpu
