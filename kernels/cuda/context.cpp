// SPDX-License-Identifier: MIT
#include "kernels/cuda/context.hpp"

#include <utility>

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

std::unique_ptr<Context> Lanes::take() {
  device_.activate();
  std::unique_lock lock(mutex_);
  returned_.wait(lock, [&] { return !idle_.empty() || not_made_ > 0; });
  if (!idle_.empty()) {
    std::unique_ptr<Context> context = std::move(idle_.back());
    idle_.pop_back();
    return context;
  }
  auto context = std::make_unique<Context>(device_, ingest_);
  --not_made_;
  return context;
}

void Lanes::give_back(std::unique_ptr<Context> context) {
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(context));
  }
  returned_.notify_one();
}

}  // namespace oscar::cuda
