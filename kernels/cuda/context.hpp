// SPDX-License-Identifier: MIT
// One GPU and the library handles that belong to it. Everything runs on the default stream, so that the order of
// operations, and with it every result, is the same in each run.
#pragma once

#include <cublas_v2.h>
#include <cusolverDn.h>

#include <string>

namespace oscar::cuda {

class Context {
 public:
  /// Throws BackendUnavailable if the GPU is not there, or if this build has no code for it.
  explicit Context(int ordinal);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// Makes this GPU the calling thread's current one.
  void activate() const;
  /// "cuda:0, NVIDIA H200, 139 GiB"
  [[nodiscard]] std::string description() const;
  [[nodiscard]] cublasHandle_t blas() const { return blas_; }
  [[nodiscard]] cusolverDnHandle_t solver() const { return solver_; }

 private:
  int ordinal_;
  cublasHandle_t blas_ = nullptr;
  cusolverDnHandle_t solver_ = nullptr;
};

}  // namespace oscar::cuda
