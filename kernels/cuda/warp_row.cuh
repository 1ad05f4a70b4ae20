// SPDX-License-Identifier: MIT
// A row of the codec in the registers of a warp. Only for .cu files.
#pragma once

#include "kernels/cuda/warp.cuh"

namespace oscar::cuda {

/// Slot s of a lane holds channel lane + 32 s.
template <int kSlots>
struct WarpRow {
  float x[kSlots];
  int dim, lane;

  [[nodiscard]] __device__ int channel(int slot) const { return lane + slot * kWarp; }
};

}  // namespace oscar::cuda
