// SPDX-License-Identifier: MIT
// What the tests of backends share: random activations of every type and head size, outputs between guards, and one
// line per measurement, which scripts/gpu/test.sh collects.
#pragma once

#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.hpp"
#include "support/support.hpp"
#include "unit/kernels/gaussian.hpp"

namespace oscar::test {

struct Shape {
  DType dtype;
  int head_dim;
  std::int64_t tokens;
};
/// Gaussian activations with a few large channels.
[[nodiscard]] Tensor activations(const Shape& shape, int heads, unsigned seed);
[[nodiscard]] std::vector<double> gaussian(std::size_t size, unsigned seed);
[[nodiscard]] MatrixStack gaussian_matrices(int count, int dim, unsigned seed);
[[nodiscard]] MatrixStack symmetric_matrices(int count, int dim, unsigned seed);

/// A random matrix, a covariance of falling spectrum, one of a single cluster but for one vector, and zero.
[[nodiscard]] MatrixStack eigenproblems(int dim);

/// Formats of the coded cache, one a KV head: both classes, every width somewhere, channels that are not stored. dim is
/// a multiple of 8.
[[nodiscard]] std::shared_ptr<const std::vector<CodedFormat>> coded_formats(int kv_heads, int dim);

/// Prints the measurement and fails unless error <= tolerance.
void check_error(const std::string& what, const Shape& shape, double error, double tolerance);

/// An output between two guards. Starts as NaN, so that what is not written shows.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::size_t size) : values_(size + 2 * kGuard, static_cast<T>(std::nan(""))) {
    for (std::size_t i = 0; i < kGuard; ++i) values_[i] = values_[size + kGuard + i] = kSentinel;
  }
  [[nodiscard]] std::span<T> get() { return std::span(values_).subspan(kGuard, values_.size() - 2 * kGuard); }
  /// True if nothing outside was written and everything inside was.
  [[nodiscard]] bool intact() {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (values_[i] != kSentinel || values_[values_.size() - 1 - i] != kSentinel) return false;
    }
    for (const T value : get()) {
      if (std::isnan(value)) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr T kSentinel = static_cast<T>(-12345.75);
  std::vector<T> values_;
};

/// max |a - b|; infinite if a difference is NaN.
template <class A, class B>
[[nodiscard]] double largest_difference(const A& a, const B& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= largest)) largest = std::isnan(difference) ? INFINITY : difference;
  }
  return largest;
}
template <class A>
[[nodiscard]] double largest_magnitude(const A& a) {
  return largest_difference(a, std::vector<double>(a.size()));
}

/// True if rounding to bfloat16 would change nothing.
[[nodiscard]] bool all_bf16(std::span<const float> values);

/// Over the matrices: the largest |a - b| / |b|, Frobenius norms.
[[nodiscard]] double relative_error(const MatrixStack& a, const MatrixStack& b);

}  // namespace oscar::test
