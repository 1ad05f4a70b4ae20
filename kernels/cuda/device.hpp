// SPDX-License-Identifier: MIT
// One GPU as all lanes share it, what one verb works with there, and errors of the CUDA libraries.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cusolverDn.h>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>

#include "base/errors.hpp"
#include "base/status.hpp"

namespace oscar::cuda {

/// The GPU has no room for what was asked for; Lanes::run() tries again with smaller chunks.
struct OutOfMemory : BackendUnavailable {
  explicit OutOfMemory(std::string where);
};

/// Status codes as errors that carry the text of the call: BackendUnavailable unless it succeeded, OutOfMemory if
/// memory was what it lacked.
void check(cudaError_t status, const char* call);
void check(cublasStatus_t status, const char* call);
void check(cusolverStatus_t status, const char* call);

/// cuBLAS as all lanes of a GPU share it, since every handle takes tens of MB there.
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

/// One GPU as all lanes share it: its memory, cuBLAS, how much of a layer may lie there at a time, and whom to tell.
/// May be used from several threads at a time.
class Device {
 public:
  /// Throws BackendUnavailable if the GPU is not there, or if this build has no code for it. `status` must outlive it.
  Device(int ordinal, Status& status);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// Makes this GPU the calling thread's current one.
  void activate() const;
  /// "cuda:0, NVIDIA H200, 139 GiB"
  [[nodiscard]] std::string description() const;

  /// Memory for what `stream` does next, and back once what it was given has run. Throws OutOfMemory.
  [[nodiscard]] void* allocate(std::size_t bytes, cudaStream_t stream);
  void release(void* data, std::size_t bytes, cudaStream_t stream) noexcept;

  /// Whether sums of products are made in fp64. Where fp64 is slow they are made in fp32 over few rows, and those sums
  /// added in fp64.
  [[nodiscard]] bool multiplies_in_f64() const { return multiplies_in_f64_; }

  /// Stored bytes of rows that a verb may keep on the GPU in one buffer. No result depends on it.
  [[nodiscard]] std::size_t chunk_bytes() const { return chunk_bytes_; }
  /// Halves the chunks after a verb that worked with `chunk_bytes` found no memory, and says so, unless another verb
  /// just did. Throws OutOfMemory if that cannot help.
  void work_in_smaller_chunks(std::size_t chunk_bytes, const OutOfMemory& error);

  /// Says how much the pool took at most, and how much is taken of the GPU now, by handles and other processes as well.
  void tell_memory() const;

  [[nodiscard]] SharedBlas& blas() { return blas_; }
  [[nodiscard]] Status& status() const { return status_; }

 private:
  int ordinal_;
  Status& status_;
  cudaMemPool_t pool_ = nullptr;
  bool multiplies_in_f64_ = true;
  std::size_t memory_limit_;
  std::atomic<std::size_t> allocated_ = 0;
  std::atomic<std::size_t> chunk_bytes_;
  SharedBlas blas_;
};

}  // namespace oscar::cuda

#define OSCAR_CUDA_TRY(...) ::oscar::cuda::check((__VA_ARGS__), #__VA_ARGS__)
/// Throws after a kernel launch for a wrong configuration, and for errors of earlier kernels that have come up since.
#define OSCAR_CUDA_LAUNCHED(kernel) ::oscar::cuda::check(cudaGetLastError(), kernel)
