// SPDX-License-Identifier: MIT
// Division of many numbers by one that kernels are given: a multiplication and a shift.
#pragma once

#include <bit>
#include <cstdint>

namespace oscar::cuda {

/// Exact for numbers from 0 to below 2^31.
struct FastDivide {
  unsigned multiple = 0;
  int shift = 0;

  FastDivide() = default;
  /// by: positive.
  explicit FastDivide(int by) : shift(31 + std::bit_width(static_cast<unsigned>(by) - 1)) {
    const auto divisor = static_cast<std::uint64_t>(by);
    multiple = static_cast<unsigned>(((std::uint64_t{1} << shift) + divisor - 1) / divisor);
  }
  [[nodiscard]] __device__ __forceinline__ int quotient(int number) const {
    return static_cast<int>(static_cast<std::uint64_t>(number) * multiple >> shift);
  }
};

}  // namespace oscar::cuda
