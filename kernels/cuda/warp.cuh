// SPDX-License-Identifier: MIT
// Reductions over the 32 lanes of a warp, in an order that is the same in every run. Only for .cu files.
#pragma once

namespace oscar::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffU;

template <class T>
__device__ T warp_sum(T value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}
__device__ inline float warp_min(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value = fminf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}
__device__ inline float warp_max(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

}  // namespace oscar::cuda
