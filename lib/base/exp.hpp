// SPDX-License-Identifier: MIT
// exp of many values that are not positive, as a softmax needs it: vectorised by the compiler, the same bits on every
// machine. Equation: exp(x) = 2^n exp(r), n = round(x / ln 2), exp(r) by its Taylor polynomial. Relative error below
// 1e-15 (double), 2e-7 (float). Values below -708 (-87) give 0. And the highest value, which it starts from.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

// For loops that are worth compiling for several instruction sets: the loader takes the best that the machine has.
// Results stay the same, since the tree is built without fused multiply-adds.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define OSCAR_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define OSCAR_VECTOR_CLONES
#endif

namespace oscar {

void exp_in_place(std::span<double> values);
void exp_in_place(std::span<float> values);

/// Returns the highest of count > 0 values, none of them NaN. Maxima go side by side, as many as a processor's vectors
/// hold; the function becomes part of its caller, which may be compiled for several instruction sets
/// (OSCAR_VECTOR_CLONES).
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
