// SPDX-License-Identifier: MIT
// Sizes of kernel launches. Only for .cu files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oscar::cuda {

inline constexpr unsigned kThreads = 256;

/// Blocks of kThreads threads, one thread a task.
inline unsigned blocks_for(std::size_t tasks) { return static_cast<unsigned>((tasks + kThreads - 1) / kThreads); }

/// This thread's task.
__device__ inline std::int64_t task_index() { return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

}  // namespace oscar::cuda
