// SPDX-License-Identifier: MIT
// What one verb works with: a stream of its own, so that several verbs share the GPU, and what the libraries need for
// it. All of a verb's work goes to its stream, so the order of operations, and with it every result, is the same in
// each run. Belongs to one thread at a time (lanes.hpp).
#pragma once

#include <cusolverDn.h>

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/ingest.hpp"

namespace oscar::cuda {

class Context {
 public:
  Context(Device& device, Ingest& ingest);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] Device& device() const { return device_; }
  [[nodiscard]] Ingest& ingest() const { return ingest_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  /// The GPU's cuBLAS for one call on this stream, with a workspace of its own here, without which its results could
  /// differ from run to run.
  [[nodiscard]] SharedBlas::Turn blas() const;
  /// Made when first asked for, since that takes a while and hundreds of MB of the GPU.
  [[nodiscard]] cusolverDnHandle_t solver() const;
  /// Waits for what has been launched, and throws its errors.
  void synchronize() const { OSCAR_CUDA_TRY(cudaStreamSynchronize(stream_)); }

 private:
  Device& device_;
  Ingest& ingest_;
  cudaStream_t stream_ = nullptr;
  mutable void* blas_workspace_ = nullptr;
  mutable cusolverDnHandle_t solver_ = nullptr;
};

}  // namespace oscar::cuda
