// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace oscar {

/// Returns the highest of count > 0 values, none of them NaN. Maxima go side by side, as many as a processor's vectors
/// hold; the function becomes part of its caller, which may be compiled for several instruction sets
/// (base/vector_clones.hpp).
template <class T>
[[gnu::always_inline]] inline T highest_of(const T* values, std::size_t count) {
  constexpr std::size_t kLanes = 16;
  std::array<T, kLanes> highest;
  highest.fill(values[0]);
  const std::size_t whole = count / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) highest[j] = values[i + j] > highest[j] ? values[i + j] : highest[j];
  }
  for (std::size_t i = whole; i < count; ++i) highest[0] = std::max(highest[0], values[i]);
  return *std::max_element(highest.begin(), highest.end());
}

}  // namespace oscar
