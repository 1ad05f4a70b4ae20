// SPDX-License-Identifier: MIT
// What the coded decode kernel is given.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/coded_layout.hpp"
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

/// What the kernel is compiled for besides the head size, and what follows for a block.
struct CodedTiling {
  static constexpr int kFew = 8, kMany = 12;  // operands

  int key_tiles;  // of four query heads each
  int operands;   // of the values, at most: kFew, kMany or kMostValueOperands

  /// The smallest tiling that has room for so many query heads and operands of the values.
  static constexpr CodedTiling of(int head_dim, int heads, int value_operands) {
    const int least = head_dim == 256 ? kMostValueOperands : value_operands;
    return {(heads + 3) / 4, least <= kFew ? kFew : least <= kMany ? kMany : kMostValueOperands};
  }
  /// Warps that a multiprocessor's registers have room for.
  [[nodiscard]] constexpr int warps_at_once() const { return operands <= kMany ? 16 : 8; }
  /// Tokens that a warp takes at a time: 64 where there are registers for their scores.
  [[nodiscard]] constexpr int step() const { return key_tiles == 1 || operands <= kFew ? 64 : 32; }
  /// Warps that share their tokens.
  [[nodiscard]] constexpr int team() const { return key_tiles <= 2 ? 1 : 4; }
  /// Steps whose copies a warp has room for. With one, keys and values of the next step are copied as soon as those of
  /// a step have been read; a second one would take room that other warps need.
  [[nodiscard]] constexpr int stages() const { return team() == 1 || step() == 64 ? 1 : 2; }
  /// Bytes of shared memory of a step's copies: its rows' planes and scales.
  [[nodiscard]] constexpr int stage_bytes(int planes) const { return step() * (16 * planes + 4); }
  /// Bytes of a warp's step of scales as float32 and of weights: 16 bytes a token each, the weights for each class of
  /// scales and 8 heads, or for both classes of 4 heads.
  [[nodiscard]] constexpr int weights_bytes() const {
    const int sets = key_tiles == 1 ? 1 : key_tiles == 2 ? 2 : 4;
    return 16 * step() * (1 + sets);
  }
  /// Bytes of a warp: copies, then scales and weights.
  [[nodiscard]] constexpr int warp_bytes(int planes) const { return stages() * stage_bytes(planes) + weights_bytes(); }
};

/// Launches the kernel for kDim channels a head. Returns a cudaError_t.
template <int kDim>
int launch_coded(const CodedParams& p, cudaStream_t stream);

}  // namespace oscar::cuda
