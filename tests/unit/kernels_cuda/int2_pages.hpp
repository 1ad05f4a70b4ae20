// SPDX-License-Identifier: MIT
// Paged pools of an INT2 cache as a server has them, in host and device memory, for tests of oscar/int2_attention.h.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/plugin.hpp"
#include "oscar/int2_attention.h"
#include "support/support.hpp"
#include "tensor/dtype.hpp"

namespace oscar::test {

inline void check_cuda(int status) {
  if (status != 0) throw std::runtime_error(cudaGetErrorString(static_cast<cudaError_t>(status)));
}

/// A function of the plug-in.
template <class Function>
Function* plugin_function(const char* name) {
  return reinterpret_cast<Function*>(plugin_symbol("cuda", name));
}

[[nodiscard]] inline std::vector<std::byte> bytes_of(const std::vector<int>& values) {
  const auto* first = reinterpret_cast<const std::byte*>(values.data());
  return {first, first + 4 * values.size()};
}

/// Bytes on the device between two guards of kGuard bytes.
class DeviceBytes {
 public:
  static constexpr std::size_t kGuard = 256;
  explicit DeviceBytes(std::size_t size, unsigned char fill = 0);
  explicit DeviceBytes(const std::vector<std::byte>& bytes);
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  [[nodiscard]] std::byte* get() const { return data_ + kGuard; }
  [[nodiscard]] std::size_t size() const { return size_; }
  void fill(unsigned char value) { check_cuda(cudaMemset(get(), value, size_)); }
  [[nodiscard]] std::vector<std::byte> download() const;
  template <class T>
  [[nodiscard]] std::vector<T> download_as() const {
    std::vector<T> out(size_ / sizeof(T));
    check_cuda(cudaMemcpy(out.data(), get(), out.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }
  /// True if nobody wrote outside.
  [[nodiscard]] bool intact() const;

 private:
  std::byte* data_ = nullptr;
  std::size_t size_;
};

/// Rows (page, KV head, token in page, width) of one kind, random bytes at first on the host.
struct RowPool {
  int heads, page_size, width;  // width: bytes of a row
  std::vector<std::byte> host;

  RowPool(int pages, int heads_, int page_size_, int width_)
      : heads(heads_),
        page_size(page_size_),
        width(width_),
        host(static_cast<std::size_t>(pages) * heads_ * page_size_ * width_) {}
  [[nodiscard]] std::byte* row(int page, int head, int slot) {
    return host.data() + ((static_cast<std::size_t>(page) * heads + head) * page_size + slot) * width;
  }
  [[nodiscard]] oscar_paged_rows at(const DeviceBytes& device) const {
    return {device.get(), std::int64_t{heads} * page_size * width, width, std::int64_t{page_size} * width};
  }
};

/// Pages of each sequence, in a random order.
struct Pages {
  int page_size, per_sequence = 1, total = 1;
  std::vector<int> table, lengths;

  Pages(const std::vector<int>& lengths_, int page_size_, std::mt19937& engine);
  [[nodiscard]] int page(int sequence, int token) const {
    return table[static_cast<std::size_t>(sequence) * per_sequence + token / page_size];
  }
};

/// A float as an element of `dtype` at `to`, and back.
void store(float value, oscar_dtype dtype, std::byte* to);
[[nodiscard]] float load(oscar_dtype dtype, const std::byte* from);
[[nodiscard]] inline int bytes_of(oscar_dtype dtype) { return dtype == OSCAR_FLOAT32 ? 4 : 2; }

}  // namespace oscar::test
