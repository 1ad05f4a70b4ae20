// SPDX-License-Identifier: MIT
// What the coded decode kernel is given.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/coded_tiling.hpp"
#include "kernels/cuda/int2_decode_params.cuh"
#include "oscar/coded_attention.h"

namespace oscar::cuda {

/// The arguments as the kernel takes them; members that DecodeParams has mean the same.
struct CodedParams {
  oscar_coded_decode_args args;
  PagedRows k_window, v_window;
  CodedTiling tiling;
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

/// Launches the kernel for kDim channels a head. Returns a cudaError_t.
template <int kDim>
int launch_coded(const CodedParams& p, cudaStream_t stream);

}  // namespace oscar::cuda
