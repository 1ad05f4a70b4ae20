// SPDX-License-Identifier: MIT
#include "kernels/cuda/shared_blas.hpp"

namespace oscar::cuda {

SharedBlas::Turn::Turn(SharedBlas& shared, cudaStream_t stream, void* workspace, std::size_t bytes)
    : shared_(shared), lock_(shared.mutex_) {
  if (shared_.handle_ == nullptr) {
    cublasHandle_t handle = nullptr;
    OSCAR_CUDA_TRY(cublasCreate(&handle));
    shared_.handle_ = handle;
  }
  OSCAR_CUDA_TRY(cublasSetStream(shared_.handle_, stream));  // first, since it takes the workspace away
  OSCAR_CUDA_TRY(cublasSetWorkspace(shared_.handle_, workspace, bytes));
}

SharedBlas::~SharedBlas() {
  if (handle_ != nullptr) cublasDestroy(handle_);
}

}  // namespace oscar::cuda
