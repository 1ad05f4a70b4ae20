// SPDX-License-Identifier: MIT
#include "kernels/cuda/context.hpp"

namespace oscar::cuda {
namespace {

constexpr std::size_t kBlasWorkspaceBytes = std::size_t{8} << 20;

}  // namespace

Context::Context(Device& device, Ingest& ingest) : device_(device), ingest_(ingest) {
  device_.activate();
  OSCAR_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

Context::~Context() {
  if (solver_ != nullptr) cusolverDnDestroy(solver_);
  device_.release(blas_workspace_, kBlasWorkspaceBytes, stream_);
  (void)cudaStreamDestroy(stream_);
}

SharedBlas::Turn Context::blas() const {
  if (blas_workspace_ == nullptr) blas_workspace_ = device_.allocate(kBlasWorkspaceBytes, stream_);
  return {device_.blas(), stream_, blas_workspace_, kBlasWorkspaceBytes};
}

cusolverDnHandle_t Context::solver() const {
  if (solver_ == nullptr) {
    OSCAR_CUDA_TRY(cusolverDnCreate(&solver_));
    OSCAR_CUDA_TRY(cusolverDnSetStream(solver_, stream_));
    OSCAR_CUDA_TRY(cusolverDnSetDeterministicMode(solver_, CUSOLVER_DETERMINISTIC_RESULTS));
  }
  return solver_;
}

}  // namespace oscar::cuda
