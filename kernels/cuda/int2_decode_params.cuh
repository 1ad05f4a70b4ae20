// SPDX-License-Identifier: MIT
// What the INT2 decode kernel is given, and how it cuts a sequence: on the host and on the device.
#pragma once

#include <cstdint>

#include "oscar/int2_attention.h"

namespace oscar::cuda {

inline constexpr int kDecodeWarps = 8;
inline constexpr int kDecodeThreads = 32 * kDecodeWarps;
inline constexpr int kStepTokens = 32;  // of a warp

/// oscar_paged_rows with strides that one multiplication takes.
struct PagedRows {
  const unsigned char* data;
  int page_stride, token_stride, head_stride;

  __device__ const unsigned char* head(int kv_head) const { return data + std::int64_t{head_stride} * kv_head; }
  __device__ const unsigned char* at(const unsigned char* from, int page, int slot) const {
    return from + std::int64_t{page_stride} * page + std::int64_t{token_stride} * slot;
  }
};

/// The arguments as the kernel takes them.
struct DecodeParams {
  oscar_int2_decode_args args;
  PagedRows k_codes, v_codes, k_params, v_params, k_window, v_window;
  int parts, part_heads;  // of a KV head
  int max_splits;
  int history_shift, window_shift;  // log2 of the page sizes
  float score_scale;                // softmax scale * log2(e)
  float* partials;                  // (batch, num_kv_heads * parts, max_splits): see PartialView
  std::int64_t unit_floats;         // of a (sequence, part)
  int* tickets;                     // (batch, num_kv_heads * parts)
};

/// Blocks that a long sequence is cut into: what an H100 holds at once.
inline constexpr int kDecodePieces = 264;
/// Of those for the window, of which 16 tokens are a warp's step.
inline constexpr int kWindowPieces = 3;

/// How a sequence is cut: first the window's splits, then the history's. Follows from its own lengths alone.
struct SplitPlan {
  int window_tokens, window_splits;  // tokens of a split
  int history_tokens, history_splits;

  __host__ __device__ SplitPlan(int length, int window, int num_kv_heads)
      : window_tokens(multiple(window, kMostWindowSplits, kWindowQuantum)),
        window_splits(window > 0 ? (window + window_tokens - 1) / window_tokens : 1),
        history_tokens(multiple(length, most_history_splits(num_kv_heads), kQuantum)),
        history_splits(0) {
    const int eighth = multiple(length, 8, kQuantum), some = eighth < 2 * kQuantum ? 2 * kQuantum : eighth;
    const int wanted = some < kEnough ? some : kEnough;
    if (history_tokens < wanted) history_tokens = wanted;
    history_splits = (length + history_tokens - 1) / history_tokens;
  }
  __host__ __device__ int count() const { return window_splits + history_splits; }
  /// First token of a split of the history.
  __device__ int history_first(int split) const { return (split - window_splits) * history_tokens; }
  /// No sequence up to these lengths has a larger count.
  __host__ __device__ static int most(int max_length, int max_window, int num_kv_heads) {
    const int by_length = max_length <= 8 * kEnough ? 8 : (max_length + kEnough - 1) / kEnough;
    const int history = most_history_splits(num_kv_heads), window = (max_window + kWindowQuantum - 1) / kWindowQuantum;
    return (by_length < history ? by_length : history) + (window < 1                   ? 1
                                                          : window < kMostWindowSplits ? window
                                                                                       : kMostWindowSplits);
  }

 private:
  static constexpr int kMostWindowSplits = 8, kWindowQuantum = 16 * kDecodeWarps, kMostHistorySplits = 256;
  static constexpr int kQuantum = kDecodeWarps * kStepTokens;  // as many steps for each warp
  static constexpr int kEnough = 1024;  // to make what a block costs beside its tokens a small part

  __host__ __device__ static int most_history_splits(int num_kv_heads) {
    const int pieces = kDecodePieces / num_kv_heads - kWindowPieces;
    return pieces < 1 ? 1 : pieces < kMostHistorySplits ? pieces : kMostHistorySplits;
  }
  /// The least multiple of `quantum` of which `count` make `total`.
  __host__ __device__ static int multiple(int total, int count, int quantum) {
    const int tokens = (total + count - 1) / count;
    return tokens < 1 ? quantum : (tokens + quantum - 1) / quantum * quantum;
  }
};

}  // namespace oscar::cuda
