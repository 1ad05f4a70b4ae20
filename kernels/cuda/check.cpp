// SPDX-License-Identifier: MIT
#include "kernels/cuda/check.hpp"

#include <string>

namespace oscar::cuda {
namespace {

constexpr const char* kRemedy = "look at nvidia-smi, or use --device cpu";

}  // namespace

OutOfMemory::OutOfMemory(std::string where)
    : BackendUnavailable("the GPU is out of memory", std::move(where),
                         "free memory on the GPU (nvidia-smi shows who holds it), or use --device cpu") {}

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // or the next call would report it again
  if (status == cudaErrorMemoryAllocation) throw OutOfMemory(call);
  throw BackendUnavailable(std::string("CUDA: ") + cudaGetErrorString(status), call, kRemedy);
}

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  if (status == CUBLAS_STATUS_ALLOC_FAILED) throw OutOfMemory(call);
  throw BackendUnavailable(std::string("cuBLAS: ") + cublasGetStatusString(status), call, kRemedy);
}

void check(cusolverStatus_t status, const char* call) {
  if (status == CUSOLVER_STATUS_SUCCESS) return;
  if (status == CUSOLVER_STATUS_ALLOC_FAILED) throw OutOfMemory(call);
  throw BackendUnavailable("cuSOLVER: status " + std::to_string(static_cast<int>(status)), call, kRemedy);
}

}  // namespace oscar::cuda
