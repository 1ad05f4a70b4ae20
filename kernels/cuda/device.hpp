// SPDX-License-Identifier: MIT
// One GPU as all lanes share it: its memory, cuBLAS, how much of a layer may lie there at a time, and whom to tell.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <string>

#include "base/status.hpp"
#include "kernels/cuda/shared_blas.hpp"

namespace oscar::cuda {

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
