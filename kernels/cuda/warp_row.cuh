// SPDX-License-Identifier: MIT
// A row of the codec in the registers of a warp, and sums over groups of its channels. Only for .cu files.
#pragma once

#include "kernels/arguments.hpp"
#include "kernels/cuda/warp.cuh"

namespace oscar::cuda {

/// Slot s of a lane holds channel lane + 32 s.
template <int kSlots>
struct WarpRow {
  float x[kSlots];
  int dim, lane;

  [[nodiscard]] __device__ int channel(int slot) const { return lane + slot * kWarp; }
};

/// Channels [begin, end) of a row.
template <int kSlots>
struct WarpGroup {
  const WarpRow<kSlots>& row;
  int begin, end;

  [[nodiscard]] __device__ int size() const { return end - begin; }
  [[nodiscard]] __device__ double x(int slot) const { return row.x[slot]; }
  [[nodiscard]] __device__ bool has(int slot) const { return row.channel(slot) >= begin && row.channel(slot) < end; }

  /// Returns in all lanes the sum of term(slot), in the order of strand_sum(): a lane has one strand of the group.
  template <class Term>
  [[nodiscard]] __device__ double sum(const Term& term) const {
    static_assert(kStrands == kWarp);
    double strand = 0;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      if (has(s)) strand += term(s);
    }
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const int other = ((row.lane - begin) & (kWarp - 1)) ^ step;
      strand += __shfl_sync(kAllLanes, strand, (other + begin) & (kWarp - 1));
    }
    return strand;
  }
};

}  // namespace oscar::cuda
