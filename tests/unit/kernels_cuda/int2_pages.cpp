// SPDX-License-Identifier: MIT
#include "unit/kernels_cuda/int2_pages.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace oscar::test {
namespace {
constexpr unsigned char kGuardByte = 0xA5;
}

DeviceBytes::DeviceBytes(std::size_t size, unsigned char fill_with) : size_(size) {
  check_cuda(cudaMalloc(&data_, size + 2 * kGuard));
  check_cuda(cudaMemset(data_, kGuardByte, size + 2 * kGuard));
  fill(fill_with);
}

DeviceBytes::DeviceBytes(const std::vector<std::byte>& bytes) : DeviceBytes(bytes.size()) {
  check_cuda(cudaMemcpy(get(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
}

std::vector<std::byte> DeviceBytes::download() const { return download_as<std::byte>(); }

bool DeviceBytes::intact() const {
  std::vector<unsigned char> guards(2 * kGuard);
  check_cuda(cudaMemcpy(guards.data(), data_, kGuard, cudaMemcpyDeviceToHost));
  check_cuda(cudaMemcpy(guards.data() + kGuard, get() + size_, kGuard, cudaMemcpyDeviceToHost));
  return std::all_of(guards.begin(), guards.end(), [](unsigned char byte) { return byte == kGuardByte; });
}

Pages::Pages(const std::vector<int>& lengths_, int page_size_, std::mt19937& engine)
    : page_size(page_size_), lengths(lengths_) {
  const auto pages_for = [&](int length) { return (length + page_size - 1) / page_size; };
  int used = 0;
  for (const int length : lengths) {
    per_sequence = std::max(per_sequence, pages_for(length));
    used += pages_for(length);
  }
  total = used + 3;  // some belong to nobody
  std::vector<int> order(static_cast<std::size_t>(total));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), engine);
  // What a sequence does not use must not be looked at.
  table.assign(lengths.size() * static_cast<std::size_t>(per_sequence), 1 << 30);
  auto next = order.begin();
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    const int count = pages_for(lengths[b]);
    std::copy(next, next + count, table.begin() + static_cast<std::ptrdiff_t>(b) * per_sequence);
    next += count;
  }
}

void store(float value, oscar_dtype dtype, std::byte* to) {
  const std::uint16_t half = dtype == OSCAR_FLOAT16 ? f16_from_float(value) : bf16_from_float(value);
  if (dtype == OSCAR_FLOAT32) {
    std::memcpy(to, &value, 4);
  } else {
    std::memcpy(to, &half, 2);
  }
}

float load(oscar_dtype dtype, const std::byte* from) {
  float value = 0;
  std::uint16_t half = 0;
  if (dtype == OSCAR_FLOAT32) {
    std::memcpy(&value, from, 4);
    return value;
  }
  std::memcpy(&half, from, 2);
  return dtype == OSCAR_FLOAT16 ? float_from_f16(half) : float_from_bf16(half);
}

}  // namespace oscar::test
