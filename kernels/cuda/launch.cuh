// SPDX-License-Identifier: MIT
// How the kernels of servers are launched: each may come to the chip while the one before it ends.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "kernels/server_arguments.hpp"

namespace oscar::cuda {

static_assert(kRefused == cudaErrorInvalidValue);

/// Where the chip has it: lets the next launch of the stream come to the chip, and waits for the end of the one before,
/// whose results this launch may read. Blocks so find their places while the launch before is ending.
__device__ __forceinline__ void follow_previous_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

/// Lets the kernel have its shared memory on the current device, and says whether launches can overlap there.
template <auto kKernel>
cudaError_t prepare(int shared_bytes, bool& overlaps) {
  constexpr int kMostDevices = 64;
  static std::atomic<int> code_version[kMostDevices];  // what the kernel's code there was compiled for; 0: not prepared
  int device = 0, version = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess && device < kMostDevices) version = code_version[device];
  if (status == cudaSuccess && version == 0) {
    cudaFuncAttributes attributes{};
    status = cudaFuncGetAttributes(&attributes, kKernel);
    if (status != cudaSuccess) return status;
    version = attributes.ptxVersion;
    status = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (status == cudaErrorInvalidValue) (void)refuse("this GPU has too little shared memory for this shape");
    if (status == cudaSuccess && device < kMostDevices) code_version[device] = version;
  }
  overlaps = version >= 90;  // else the code does not wait
  return status;
}

/// kKernel<<<grid, threads, shared_bytes, stream>>>(params); most_shared_bytes: of any launch of it. Returns a
/// cudaError_t; oscar_last_error() says why, if it is cudaErrorInvalidValue.
template <auto kKernel, class Params>
int launch_overlapping(const Params& params, dim3 grid, int threads, int shared_bytes, int most_shared_bytes,
                       cudaStream_t stream) {
  bool overlaps = false;
  if (const cudaError_t status = prepare<kKernel>(most_shared_bytes, overlaps); status != cudaSuccess) return status;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = overlaps ? 1 : 0;
  const cudaError_t status = cudaLaunchKernelEx(&config, kKernel, params);
  return status == cudaErrorInvalidValue ? refuse(cudaGetErrorString(status)) : status;
}

/// task.operator()<d>() for a head size that head_dim_problem() takes.
template <class Task>
auto with_head_dim(int head_dim, const Task& task) {
  switch (head_dim) {
    case 64:
      return task.template operator()<64>();
    case 128:
      return task.template operator()<128>();
    default:
      return task.template operator()<256>();
  }
}

}  // namespace oscar::cuda
