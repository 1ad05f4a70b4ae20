// SPDX-License-Identifier: MIT
// An array in GPU memory that frees itself. It comes from a lane's stream and goes back there; another lane may use it
// once the verb that made it has ended, as long as no verb uses it when it goes.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "kernels/cuda/context.hpp"

namespace oscar::cuda {

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

}  // namespace oscar::cuda
