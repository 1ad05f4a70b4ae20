// SPDX-License-Identifier: MIT
// Reductions over the lanes of a warp and the threads of a block, in an order that is the same in every run, and a row
// of the codec in the registers of a warp. Only for .cu files.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/arguments.hpp"

namespace oscar::cuda {

// Sizes of kernel launches. Only for .cu files.

inline constexpr unsigned kThreads = 256;

/// Blocks of kThreads threads, one thread a task.
inline unsigned blocks_for(std::size_t tasks) { return static_cast<unsigned>((tasks + kThreads - 1) / kThreads); }

/// This thread's task.
__device__ inline std::int64_t task_index() { return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

// Reductions over the 32 lanes of a warp, in an order that is the same in every run. Only for .cu files.

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

// Sums and maxima over the kThreads threads of a block, in an order that is the same in every run.

template <class T, class Combine>
__device__ T block_reduce(T value, Combine combine) {
  __shared__ T values[kThreads];
  values[threadIdx.x] = value;
  __syncthreads();
  for (unsigned step = kThreads / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) values[threadIdx.x] = combine(values[threadIdx.x], values[threadIdx.x + step]);
    __syncthreads();
  }
  const T result = values[0];
  __syncthreads();  // or the next reduction could overwrite it before all have read it
  return result;
}

struct Add {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Larger {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

template <class T>
__device__ T block_sum(T value) {
  return block_reduce(value, Add{});
}
template <class T>
__device__ T block_max(T value) {
  return block_reduce(value, Larger{});
}

// A row of the codec in the registers of a warp, and sums over groups of its channels. Only for .cu files.

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
