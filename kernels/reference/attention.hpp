// SPDX-License-Identifier: MIT
// Causal attention of one query over keys and values of mixed precision, in fp64, and what the cache does to it.
// It also says what a server does to rows before the cache: transforms, and its roundings.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/types.hpp"

namespace oscar::reference {

// Packed rows of the history may be of any kind that row_codec.hpp knows; windows keep rows as they are stored.
// A query at position i sees the keys j <= i. It reads key j and value j as stored if j < sink or j > i - recent, else
// as the history decodes them. With scores s_j = q k_j / sqrt(d)
//   p_j = exp(s_j) / sum_j exp(s_j),   o = sum_j p_j v_j
// A ScoreRule caps scores, shortens what a query sees, and adds sinks to the sum.

/// Keys, or values, of one KV head in the cache's coordinates, oldest first.
struct CacheRows {
  int dim = 0;
  std::vector<float> stored;   // (tokens, d), as windows read them
  std::vector<float> history;  // (tokens, d), as the history reads them
};

/// Returns rows whose history is packed. stored: (tokens, d); packed: (tokens, packed_row_bytes) of the codec and KV
/// head. Precision::kServing rounds decoded rows to bfloat16.
[[nodiscard]] CacheRows packed_cache_rows(std::vector<float> stored, int dim, std::span<const std::uint8_t> packed,
                                          const HistoryCodec& codec, int kv_head, Precision precision);

/// Who asks: one query head at a position among the keys.
struct Query {
  std::vector<double> row;  // (d), in the coordinates of the keys
  std::int64_t position = 0;
  int head = 0;  // whose sink the rule names
};

/// What a query sees and gets.
struct Attention {
  std::vector<double> scores;         // (position + 1): s_j before the rule
  std::vector<double> probabilities;  // (position + 1): p_j; 0 for keys beyond the rule's reach
  std::vector<double> output;         // (d_v), in the coordinates of the values
};

/// Throws std::logic_error unless keys and values have the same number of tokens, at least position + 1. rule: null for
/// a softmax alone.
[[nodiscard]] Attention attend(const Query& query, const CacheRows& keys, const CacheRows& values, Windows windows,
                               const ScoreRule* rule = nullptr);

/// Attention over rows that nothing is packed of: queries of every precision read them as stored.
[[nodiscard]] Attention attend_exactly(const Query& query, const CacheRows& keys, const CacheRows& values,
                                       const ScoreRule* rule = nullptr);

// What a mixed-precision cache does to the attention of a query: the sums of AttentionErrors, by their definitions in
// kernels/README.md.

/// Adds one query to the errors of its head.
///   exact     attention over native rows
///   mixed     attention over the cache, its output mapped back to native coordinates
/// Throws std::logic_error unless both saw the same number of keys and have outputs of the same size.
void add_errors(const Attention& exact, const Attention& mixed, Windows windows, AttentionErrors& errors);

// Rows as a cache stores them: turned by a transform, rounded as a server rounds. Precision::kServing rounds native
// rows, matrices and the product to bfloat16; Precision::kExact rounds the product to float32 alone.

/// rows[t, h] = x[t, h] M, (tokens, heads, d). M is the stack's only matrix, or matrix h / g for the g heads that share
/// one. Products are summed in fp64.
void rotate(HeadsView x, const MatrixStack& rotated_from_native, Precision precision, std::span<float> rows);

/// Returns what a cache stores of x, (tokens, heads, d): x M, or x itself without a matrix; keys of a Transform with a
/// mean (d, or heads times d values) are (x - mean) M, where the difference is rounded to float32.
[[nodiscard]] std::vector<float> stored_rows(HeadsView x, const MatrixStack* rotated_from_native,
                                             std::span<const double> mean, Precision precision);

/// Returns the value as Precision keeps it.
[[nodiscard]] double rounded(double value, Precision precision);

}  // namespace oscar::reference
