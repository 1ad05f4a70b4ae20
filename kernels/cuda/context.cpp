// SPDX-License-Identifier: MIT
#include "kernels/cuda/context.hpp"

#include "base/errors.hpp"
#include "kernels/cuda/check.hpp"
#include "kernels/cuda/rows.hpp"

namespace oscar::cuda {
namespace {

std::string device_name(int ordinal) { return "cuda:" + std::to_string(ordinal); }

void check_device(int ordinal) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    throw BackendUnavailable(std::string("the NVIDIA driver gives no GPU: ") + cudaGetErrorString(status),
                             device_name(ordinal), "use --device cpu, or update the driver");
  }
  if (ordinal < count) return;
  throw BackendUnavailable("no such GPU; this machine has " + std::to_string(count), device_name(ordinal),
                           "choose a smaller number, or look at CUDA_VISIBLE_DEVICES");
}

}  // namespace

Context::Context(int ordinal) : ordinal_(ordinal) {
  check_device(ordinal);
  activate();
  if (!has_code_for_this_gpu()) {
    throw BackendUnavailable("this build has CUDA code for " OSCAR_CUDA_ARCHITECTURES " only, not for this GPU",
                             description(), "use --device cpu, or build with -DCMAKE_CUDA_ARCHITECTURES=native");
  }
  OSCAR_CUDA_TRY(cublasCreate(&blas_));
  OSCAR_CUDA_TRY(cusolverDnCreate(&solver_));
}

Context::~Context() {
  if (solver_ != nullptr) cusolverDnDestroy(solver_);
  if (blas_ != nullptr) cublasDestroy(blas_);
}

void Context::activate() const { OSCAR_CUDA_TRY(cudaSetDevice(ordinal_)); }

std::string Context::description() const {
  cudaDeviceProp properties{};
  OSCAR_CUDA_TRY(cudaGetDeviceProperties(&properties, ordinal_));
  return device_name(ordinal_) + ", " + properties.name + ", " + std::to_string(properties.totalGlobalMem >> 30) +
         " GiB";
}

}  // namespace oscar::cuda
