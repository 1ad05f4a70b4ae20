// SPDX-License-Identifier: MIT
// Sums and maxima over the kThreads threads of a block, in an order that is the same in every run.
#pragma once

#include "kernels/cuda/launch.hpp"

namespace oscar::cuda {

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

}  // namespace oscar::cuda
