// SPDX-License-Identifier: MIT
// Status codes of CUDA, cuBLAS and cuSOLVER as errors that carry the text of the call.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cusolverDn.h>

#include "base/errors.hpp"

namespace oscar::cuda {

/// The GPU has no room for what was asked for; Lanes::run() tries again with smaller chunks.
struct OutOfMemory : BackendUnavailable {
  explicit OutOfMemory(std::string where);
};

/// Throw BackendUnavailable unless the call succeeded: OutOfMemory if memory was what it lacked.
void check(cudaError_t status, const char* call);
void check(cublasStatus_t status, const char* call);
void check(cusolverStatus_t status, const char* call);

}  // namespace oscar::cuda

#define OSCAR_CUDA_TRY(...) ::oscar::cuda::check((__VA_ARGS__), #__VA_ARGS__)
/// Throws after a kernel launch for a wrong configuration, and for errors of earlier kernels that have come up since.
#define OSCAR_CUDA_LAUNCHED(kernel) ::oscar::cuda::check(cudaGetLastError(), kernel)
