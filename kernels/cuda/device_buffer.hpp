// SPDX-License-Identifier: MIT
// An array in GPU memory that frees itself. Copies are synchronous, on the default stream like everything here.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "kernels/cuda/check.hpp"

namespace oscar::cuda {

template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Not initialised.
  explicit DeviceBuffer(std::size_t size) : size_(size) {
    if (size > 0) OSCAR_CUDA_TRY(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T)));
  }
  explicit DeviceBuffer(std::span<const T> host) : DeviceBuffer(host.size()) { upload(host); }
  ~DeviceBuffer() { (void)cudaFree(data_); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] const T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

  void fill_with_zeros() {
    if (size_ > 0) OSCAR_CUDA_TRY(cudaMemset(data_, 0, size_ * sizeof(T)));
  }
  /// Fill the buffer's or the host's first elements.
  void upload(std::span<const T> host) {
    OSCAR_CHECK(host.size() <= size_);
    if (!host.empty()) OSCAR_CUDA_TRY(cudaMemcpy(data_, host.data(), host.size_bytes(), cudaMemcpyHostToDevice));
  }
  void download(std::span<T> host) const {
    OSCAR_CHECK(host.size() <= size_);
    if (!host.empty()) OSCAR_CUDA_TRY(cudaMemcpy(host.data(), data_, host.size_bytes(), cudaMemcpyDeviceToHost));
  }
  [[nodiscard]] std::vector<T> to_host() const {
    std::vector<T> host(size_);
    download(host);
    return host;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace oscar::cuda
