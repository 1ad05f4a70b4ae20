// SPDX-License-Identifier: MIT
// What the coded decode kernel is given.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/int2_decode_params.cuh"
#include "oscar/coded_attention.h"

namespace oscar::cuda {

/// The arguments as the kernel takes them; members that DecodeParams has mean the same.
struct CodedParams {
  oscar_coded_decode_args args;
  PagedRows k_window, v_window;
  SplitRule rule;
  int query_tokens, per_token_inverse;  // see CodedHeads
  int parts, part_heads;                // of a KV head's query heads of all tokens
  int max_splits;
  SplitPlan longest;
  int history_shift, window_shift;
  int page_stride;  // of the history, in bytes
  float score_scale;
  float* partials;
  std::int64_t unit_floats;
  int* tickets;
  int most_shared_bytes;        // of any block
  int stage_bytes, warp_bytes;  // of a step's copies; of all that a warp has in shared memory
};

/// Up to so many operands of the values a multiprocessor's registers have room for 16 warps.
constexpr int few_value_operands(int head_dim) { return head_dim == 64 ? 8 : head_dim == 128 ? 12 : 0; }
constexpr bool few_coded_operands(int head_dim, int operands) { return operands <= few_value_operands(head_dim); }
/// Tokens that a warp takes at a time, and warps that share them, by key tiles.
constexpr int coded_step(int key_tiles) { return key_tiles <= 1 ? 64 : 32; }
constexpr int coded_team(int key_tiles) { return key_tiles <= 2 ? 1 : 4; }
/// Steps whose copies a warp has room for. A warp alone copies keys and values of the next step as soon as it has read
/// them; a second step would take room that other warps need.
constexpr int coded_stages(int key_tiles) { return coded_team(key_tiles) == 1 ? 1 : 2; }
/// Bytes of shared memory of a step's copies: its rows' planes and scales.
constexpr int coded_stage_bytes(int planes, int step) { return step * (16 * planes + 4); }
/// Bytes of a warp's step of scales as float32 and of weights: 16 bytes a token each, the weights for each class of
/// scales and 8 heads, or for both classes of 4 heads.
constexpr int coded_weights_bytes(int key_tiles) {
  const int sets = key_tiles <= 1 ? 1 : key_tiles <= 2 ? 2 : 4;
  return 16 * coded_step(key_tiles) * (1 + sets);
}
/// Bytes of a warp: copies, then scales and weights.
constexpr int coded_warp_bytes(int planes, int key_tiles) {
  return coded_stages(key_tiles) * coded_stage_bytes(planes, coded_step(key_tiles)) + coded_weights_bytes(key_tiles);
}

/// Launches the kernel for kDim channels a head. Returns a cudaError_t.
template <int kDim>
int launch_coded(const CodedParams& p, cudaStream_t stream);

}  // namespace oscar::cuda
