// SPDX-License-Identifier: MIT
#include "kernels/cuda/check.hpp"

#include <string>

#include "base/errors.hpp"

namespace oscar::cuda {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // or the next call would report it again
  const std::string what = std::string("CUDA: ") + cudaGetErrorString(status);
  throw BackendUnavailable(what, call,
                           status == cudaErrorMemoryAllocation
                               ? "free memory on the GPU (nvidia-smi shows who holds it), or use --device cpu"
                               : "look at nvidia-smi, or use --device cpu");
}

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw BackendUnavailable(std::string("cuBLAS: ") + cublasGetStatusString(status), call,
                           "look at nvidia-smi, or use --device cpu");
}

void check(cusolverStatus_t status, const char* call) {
  if (status == CUSOLVER_STATUS_SUCCESS) return;
  throw BackendUnavailable("cuSOLVER: status " + std::to_string(static_cast<int>(status)), call,
                           "look at nvidia-smi, or use --device cpu");
}

}  // namespace oscar::cuda
