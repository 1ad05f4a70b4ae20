// SPDX-License-Identifier: MIT
// What the coded decode kernel is given.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/int2_decode_params.cuh"
#include "oscar/coded_attention.h"

namespace oscar::cuda {

inline constexpr int kMostCodedStages = 3;

/// The arguments as the kernel takes them; members that DecodeParams has mean the same.
struct CodedParams {
  oscar_coded_decode_args args;
  PagedRows k_window, v_window;
  SplitRule rule;
  int parts, part_heads;
  int max_splits;
  int history_shift, window_shift;
  int page_stride;  // of the history, in bytes
  float score_scale;
  float* partials;
  std::int64_t unit_floats;
  int* tickets;
  int stages, stage_bytes,
      warp_bytes;  // of a warp's copies: steps in flight; bytes of one; of all, and what else it needs
};

/// Launches the kernel for kDim channels a head. Returns a cudaError_t.
template <int kDim>
int launch_coded(const CodedParams& p, cudaStream_t stream);

}  // namespace oscar::cuda
