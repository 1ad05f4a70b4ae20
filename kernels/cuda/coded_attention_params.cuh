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
  int parts, part_heads;
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

/// Up to so many operands of the values a multiprocessor's registers have room for 16 warps of up to 8 query heads.
constexpr int few_value_operands(int head_dim) { return head_dim == 64 ? 8 : head_dim == 128 ? 12 : 0; }
inline constexpr int kMostCodedStep = 64;  // tokens that a warp takes at a time
/// Bytes of shared memory of the copies of a step: its rows' planes and scales.
constexpr int coded_stage_bytes(int planes, int step) { return step * (16 * planes + 4); }
/// Two steps of copies, and the scales of one as float32.
constexpr int coded_warp_bytes(int planes, int step) { return 2 * coded_stage_bytes(planes, step) + 16 * step; }

/// Launches the kernel for kDim channels a head. Returns a cudaError_t.
template <int kDim>
int launch_coded(const CodedParams& p, cudaStream_t stream);

}  // namespace oscar::cuda
