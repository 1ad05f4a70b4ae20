// SPDX-License-Identifier: MIT
// What the INT2 decode kernel is given, and how it cuts a sequence: on the host and on the device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "oscar/int2_attention.h"

namespace oscar::cuda {

/// Bytes of a workspace that counters of finished splits take: the same for all calls of up to 16384 counters, so that
/// calls of different shapes can share a workspace, which expect zeros there.
constexpr std::size_t counter_bytes(std::size_t counters) {
  constexpr std::size_t kLeast = 64 * 1024;
  const std::size_t bytes = (4 * counters + 255) / 256 * 256;
  return bytes < kLeast ? kLeast : bytes;
}

inline constexpr int kMostDecodeWarps = 8;  // of a block
inline constexpr int kStepTokens = 32;      // of a warp

/// oscar_paged_rows with strides that one multiplication takes.
struct PagedRows {
  const unsigned char* data;
  int page_stride, token_stride, head_stride;

  __device__ const unsigned char* head(int kv_head) const { return data + std::int64_t{head_stride} * kv_head; }
  __device__ const unsigned char* at(const unsigned char* from, int page, int slot) const {
    return from + std::int64_t{page_stride} * page + std::int64_t{token_stride} * slot;
  }
};

/// What decides how sequences are cut, besides their own lengths.
struct SplitRule {
  int warps;           // of a block
  int history_pieces;  // into which a long history is cut at most
  int least_tokens;    // of a piece of a history that is not short
  int window_pieces;
  int round_tokens;  // that the warps of a block read at a time; 0: see SplitPlan::rest_tokens

  /// Returns the rule for `units` sequences times KV heads. Few leave no multiprocessor idle only if they are cut
  /// finely; many do not need that, and what a block costs besides its tokens then is the smaller part.
  static SplitRule of(std::int64_t units, int num_kv_heads);
};

/// How a sequence is cut: first the window's splits, then the history's.
struct SplitPlan {
  int window_tokens = 0, window_splits = 0;  // tokens of a split
  int history_tokens = 0, history_splits = 0;
  /// Tokens at the end of the history that the window's only block reads besides, as a split of their own. Without it
  /// other blocks would have a round more for these few tokens.
  int rest_tokens = 0;

  SplitPlan() = default;
  __host__ __device__ SplitPlan(int length, int window, const SplitRule& rule)
      : window_tokens(multiple(window, rule.window_pieces, 16 * rule.warps)),
        window_splits(window > 0 ? (window + window_tokens - 1) / window_tokens : 1),
        history_tokens(multiple(length, rule.history_pieces, kQuantum)),
        history_splits(0) {
    const int eighth = multiple(length, kShortPieces, kQuantum), some = eighth < kShort ? kShort : eighth;
    const int wanted = some < rule.least_tokens ? some : rule.least_tokens;
    if (history_tokens < wanted) history_tokens = wanted;
    if (rule.round_tokens > 0) leave_rest(length, rule);
    history_splits = (length - rest_tokens + history_tokens - 1) / history_tokens;
  }
  __host__ __device__ int blocks() const { return window_splits + history_splits; }
  __host__ __device__ int count() const { return blocks() + (rest_tokens > 0 ? 1 : 0); }
  /// First token of a split of the history.
  __device__ int history_first(int split) const { return (split - window_splits) * history_tokens; }
  /// No sequence up to these lengths has a larger count.
  static int most(int max_length, int max_window, const SplitRule& rule) {
    const int by_length = std::max(kShortPieces, (max_length + rule.least_tokens - 1) / rule.least_tokens);
    const int by_window = std::max(1, (max_window + 16 * rule.warps - 1) / (16 * rule.warps));
    return std::min(by_length, rule.history_pieces) + std::min(by_window, rule.window_pieces);
  }

 private:
  /// Rounds the pieces of a history down to whole rounds of their blocks if the rest is at least a round less than a
  /// piece: reading the window takes about as long as a round.
  __host__ __device__ void leave_rest(int length, const SplitRule& rule) {
    const int rounds = history_tokens / rule.round_tokens, tokens = rounds * rule.round_tokens;
    const int rest = length - rule.history_pieces * tokens;
    if (rest > 0 && rest <= (rounds - 1) * rule.round_tokens) history_tokens = tokens, rest_tokens = rest;
  }

  static constexpr int kQuantum = 2 * kStepTokens, kShort = 512, kShortPieces = 8;

  /// The least multiple of `quantum` of which `count` make `total`.
  __host__ __device__ static int multiple(int total, int count, int quantum) {
    const int tokens = (total + count - 1) / count;
    return tokens < 1 ? quantum : (tokens + quantum - 1) / quantum * quantum;
  }
};

/// The arguments as the kernel takes them.
struct DecodeParams {
  oscar_int2_decode_args args;
  PagedRows k_codes, v_codes, k_params, v_params, k_window, v_window;
  SplitRule rule;
  int parts, part_heads;  // of a KV head
  int max_splits;
  SplitPlan longest;                // of a sequence of max_length
  int history_shift, window_shift;  // log2 of the page sizes
  float score_scale;                // softmax scale * log2(e)
  float* partials;                  // (batch, num_kv_heads * parts, max_splits): see PartialView
  std::int64_t unit_floats;         // of a (sequence, part)
  int* tickets;                     // (batch, num_kv_heads * parts)
};

}  // namespace oscar::cuda
