// SPDX-License-Identifier: MIT
// What the INT2 decode kernel is given.
#pragma once

#include <cstdint>

#include "kernels/cuda/split_plan.hpp"
#include "oscar/int2_attention.h"

namespace oscar::cuda {

/// Bytes of a workspace that counters of finished splits take: the same for all calls of up to 16384 counters, so that
/// calls of different shapes can share a workspace, which expect zeros there.
constexpr std::size_t counter_bytes(std::size_t counters) {
  constexpr std::size_t kLeast = 64 * 1024;
  const std::size_t bytes = (4 * counters + 255) / 256 * 256;
  return bytes < kLeast ? kLeast : bytes;
}

/// Floats that a split's result takes: see PartialView.
constexpr int partial_floats(int heads, int head_dim) { return (heads + 3) / 4 * 4 * (head_dim + 2); }

/// Splits whose results are read at once when they are added up: the 33 that a single sequence of 8 KV heads has, in
/// whole 16 bytes of factors.
inline constexpr int kSplitsAtOnce = 36;
static_assert(kSplitsAtOnce % 4 == 0);
OSCAR_HOST_DEVICE constexpr int padded_splits(int splits) {
  return (splits + kSplitsAtOnce - 1) / kSplitsAtOnce * kSplitsAtOnce;
}
/// Bytes of shared memory that adding up takes.
constexpr int split_merge_bytes(int heads, int splits) { return 4 * heads * padded_splits(splits); }

inline constexpr int kMostDecodeWarps = 8;  // of a block

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
  SplitRule rule;
  int parts, part_heads;  // of a KV head
  int max_splits;
  SplitPlan longest;                // of a sequence of max_length
  int history_shift, window_shift;  // log2 of the page sizes
  float score_scale;                // softmax scale * log2(e)
  float* partials;                  // (batch, num_kv_heads * parts): see PartialView
  std::int64_t unit_floats;         // of a (sequence, part)
  int* tickets;                     // (batch, num_kv_heads * parts)
};

}  // namespace oscar::cuda
