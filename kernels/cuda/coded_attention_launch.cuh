// SPDX-License-Identifier: MIT
// Chooses the shape of the coded decode kernel for a head size, and launches it. Each head size is a file of its own,
// since a compiler takes long for them.
#pragma once

#include <algorithm>

#include "kernels/cuda/coded_attention_kernel.cuh"

namespace oscar::cuda {

template <class S>
int launch(CodedParams p, cudaStream_t stream) {
  static_assert(S::kTeam * kTeamMergeBytes<S> > 0 && kMostDecodeWarps % S::kTeam == 0);
  const int planes = p.args.layout.planes, queries = CodedQueries<S>::bytes(p.args.layout.key_operands);
  p.stage_bytes = S::kTiling.stage_bytes(planes);
  p.warp_bytes = std::max({S::kTiling.warp_bytes(planes), kTeamMergeBytes<S> / S::kTeam, kMergeBytes<S>});
  const dim3 grid(static_cast<unsigned>(p.args.layout.num_kv_heads * p.parts), static_cast<unsigned>(p.args.batch),
                  static_cast<unsigned>(p.max_splits));
  const int bytes = std::max(p.rule.warps * p.warp_bytes + queries, split_merge_bytes(p.part_heads, p.max_splits));
  return launch_overlapping<coded_decode<S>>(p, grid, kWarp * p.rule.warps, bytes, p.most_shared_bytes, stream);
}

template <int kDim, int kOperands>
int launch_coded_heads(const CodedParams& p, cudaStream_t stream) {
  if constexpr (kDim < 256) {
    if (p.tiling.key_tiles == 4) return launch<CodedShape<kDim, kOperands, 4>>(p, stream);
    if (p.tiling.key_tiles == 3) return launch<CodedShape<kDim, kOperands, 3>>(p, stream);
  }
  if (p.tiling.key_tiles == 2) return launch<CodedShape<kDim, kOperands, 2>>(p, stream);
  return launch<CodedShape<kDim, kOperands, 1>>(p, stream);
}

template <int kDim>
int launch_coded(const CodedParams& p, cudaStream_t stream) {
  if constexpr (kDim == 256) {
    return launch_coded_heads<kDim, kMostValueOperands>(p, stream);
  } else {
    if (p.tiling.operands == CodedTiling::kFew) return launch_coded_heads<kDim, CodedTiling::kFew>(p, stream);
    if constexpr (kDim > 64) {
      if (p.tiling.operands > CodedTiling::kSome) return launch_coded_heads<kDim, kMostValueOperands>(p, stream);
    }
    return launch_coded_heads<kDim, CodedTiling::kSome>(p, stream);
  }
}

}  // namespace oscar::cuda
