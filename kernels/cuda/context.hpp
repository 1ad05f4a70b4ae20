// SPDX-License-Identifier: MIT
// What a verb works with on the GPU: a stream, libraries, and memory that frees itself; and the lanes that verbs wait
// for.
#pragma once

#include <cusolverDn.h>

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/ingest.hpp"

namespace oscar::cuda {

// What one verb works with: a stream of its own, so that several verbs share the GPU, and what the libraries need for
// it. All of a verb's work goes to its stream, so the order of operations, and with it every result, is the same in
// each run. Belongs to one thread at a time.

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

// An array in GPU memory that frees itself. It comes from a lane's stream and goes back there; another lane may use it
// once the verb that made it has ended, as long as no verb uses it when it goes.

template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Allocates memory and leaves it uninitialised. Throws OutOfMemory.
  DeviceBuffer(const Context& context, std::size_t size)
      : context_(&context),
        data_(static_cast<T*>(context.device().allocate(size * sizeof(T), context.stream()))),
        size_(size) {}
  DeviceBuffer(const Context& context, std::span<const T> host) : DeviceBuffer(context, host.size()) {
    upload(context, host);
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) context_->device().release(data_, size_ * sizeof(T), context_->stream());
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }

  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] const T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

  void fill_with_zeros(const Context& context) {
    if (size_ > 0) OSCAR_CUDA_TRY(cudaMemsetAsync(data_, 0, size_ * sizeof(T), context.stream()));
  }
  /// Fill the buffer's or the host's first elements, and wait for it: for what is small. Rows go by ingest.hpp.
  void upload(const Context& context, std::span<const T> host) {
    OSCAR_CHECK(host.size() <= size_);
    copy(context, data_, host.data(), host.size_bytes(), cudaMemcpyHostToDevice);
  }
  void download(const Context& context, std::span<T> host) const {
    OSCAR_CHECK(host.size() <= size_);
    copy(context, host.data(), data_, host.size_bytes(), cudaMemcpyDeviceToHost);
  }
  [[nodiscard]] std::vector<T> to_host(const Context& context) const {
    std::vector<T> host(size_);
    download(context, host);
    return host;
  }

 private:
  static void copy(const Context& context, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return;
    OSCAR_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, kind, context.stream()));
    context.synchronize();
  }
  void swap(DeviceBuffer& other) {
    std::swap(context_, other.context_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  const Context* context_ = nullptr;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// Verbs of several threads on one GPU: each takes a lane, a Context, and gives it back when its work is done.

class Lanes {
 public:
  Lanes(Device& device, Ingest& ingest, int count) : device_(device), ingest_(ingest), not_made_(count) {}

  /// Returns what task(context) returns, once its work on the GPU is done. Waits while all lanes are taken. A task that
  /// runs out of memory starts again with smaller chunks: until it succeeds it must leave what it was given unchanged.
  template <class Task>
  auto run(const Task& task) {
    while (true) {
      const std::size_t chunk_bytes = device_.chunk_bytes();
      try {
        const Turn turn(*this);
        if constexpr (std::is_void_v<decltype(task(turn.context()))>) {
          task(turn.context());
          return turn.context().synchronize();
        } else {
          auto result = task(turn.context());
          turn.context().synchronize();
          return result;
        }
      } catch (const OutOfMemory& error) {
        device_.work_in_smaller_chunks(chunk_bytes, error);
      }
    }
  }

 private:
  /// A lane while a verb has it. What went wrong in it is over when the next one gets it.
  class Turn {
   public:
    explicit Turn(Lanes& lanes) : lanes_(lanes), context_(lanes.take()) {}
    ~Turn() {
      (void)cudaStreamSynchronize(context_->stream());
      lanes_.give_back(std::move(context_));
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    [[nodiscard]] const Context& context() const { return *context_; }

   private:
    Lanes& lanes_;
    std::unique_ptr<Context> context_;
  };

  [[nodiscard]] std::unique_ptr<Context> take();
  void give_back(std::unique_ptr<Context> context);

  Device& device_;
  Ingest& ingest_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::unique_ptr<Context>> idle_;
  int not_made_;
};

}  // namespace oscar::cuda
