// SPDX-License-Identifier: MIT
// One row of mixed-precision scores: which of two buffers holds the value of a key. Only for .cu files.
#pragma once

#include <cstdint>

#include "kernels/types.hpp"

namespace oscar::cuda {

template <class T>
struct MixedRow {
  T* window;
  T* history;
  std::int64_t position;
  Windows windows;

  __device__ bool in_window(std::int64_t key) const { return key < windows.sink || key > position - windows.recent; }
  __device__ T& at(std::int64_t key) const { return in_window(key) ? window[key] : history[key]; }
  /// Stores a weight where its score was, and 0 in the other buffer.
  __device__ void store(std::int64_t key, T weight) const {
    const bool here = in_window(key);
    window[key] = here ? weight : T{0};
    history[key] = here ? T{0} : weight;
  }
};

}  // namespace oscar::cuda
