// SPDX-License-Identifier: MIT
// cuBLAS as all lanes of a GPU share it, since every handle takes tens of MB there.
#pragma once

#include <cstddef>
#include <mutex>

#include "kernels/cuda/check.hpp"

namespace oscar::cuda {

class SharedBlas {
 public:
  /// The handle while a caller has it; others wait. It is what a call of cuBLAS takes, and goes back after it.
  class Turn {
   public:
    Turn(SharedBlas& shared, cudaStream_t stream, void* workspace, std::size_t bytes);
    operator cublasHandle_t() const { return shared_.handle_; }  // NOLINT(google-explicit-constructor)

   private:
    SharedBlas& shared_;
    std::lock_guard<std::mutex> lock_;
  };

  SharedBlas() = default;
  ~SharedBlas();
  SharedBlas(const SharedBlas&) = delete;
  SharedBlas& operator=(const SharedBlas&) = delete;

 private:
  std::mutex mutex_;
  cublasHandle_t handle_ = nullptr;  // made when first asked for, since that takes a while
};

}  // namespace oscar::cuda
