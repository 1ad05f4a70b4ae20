// SPDX-License-Identifier: MIT
#include "base/exp.hpp"

#include <cstdint>

namespace oscar {
namespace {

// Adding 1.5 * 2^52 (2^23) leaves the nearest integer in the low mantissa bits; ln 2 is split so that n * high is
// exact. Coefficients of the polynomial, highest power first, are 1 / n!.
struct DoubleConstants {
  using Value = double;
  using Bits = std::uint64_t;
  static constexpr double kLowest = -708.0, kLog2E = 1.4426950408889634, kRound = 0x1.8p52;
  static constexpr double kLn2High = 0x1.62e42fefa38p-1, kLn2Low = 0x1.ef35793c7673p-45;
  static constexpr int kMantissa = 52;
  static constexpr std::array<double, 14> kPolynomial{1.0 / 6227020800.0,
                                                      1.0 / 479001600.0,
                                                      1.0 / 39916800.0,
                                                      1.0 / 3628800.0,
                                                      1.0 / 362880.0,
                                                      1.0 / 40320.0,
                                                      1.0 / 5040.0,
                                                      1.0 / 720.0,
                                                      1.0 / 120.0,
                                                      1.0 / 24.0,
                                                      1.0 / 6.0,
                                                      0.5,
                                                      1.0,
                                                      1.0};
};
struct FloatConstants {
  using Value = float;
  using Bits = std::uint32_t;
  static constexpr float kLowest = -87.0F, kLog2E = 1.44269504F, kRound = 0x1.8p23F;
  static constexpr float kLn2High = 0x1.62e4p-1F, kLn2Low = 0x1.7f7d1cp-20F;
  static constexpr int kMantissa = 23;
  static constexpr std::array<float, 8> kPolynomial{1.0F / 5040.0F, 1.0F / 720.0F, 1.0F / 120.0F, 1.0F / 24.0F,
                                                    1.0F / 6.0F,    0.5F,          1.0F,          1.0F};
};

/// Vectors of a block, whose polynomials run side by side: each step of one waits for the step before.
constexpr int kVectors = 4;
template <class C>
constexpr std::size_t kBlockValues = kVectors * 32 / sizeof(typename C::Value);

/// values: kBlockValues of them.
template <class C>
[[gnu::always_inline]] inline void exp_block(typename C::Value* values) {
  using Vector [[gnu::vector_size(32), gnu::aligned(sizeof(typename C::Value)), gnu::may_alias]] = typename C::Value;
  using Bits [[gnu::vector_size(32)]] = typename C::Bits;
  auto* const x = reinterpret_cast<Vector*>(values);
  Vector shifted[kVectors], r[kVectors], p[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const Vector lowest = Vector{} + C::kLowest, clamped = x[v] < lowest ? lowest : x[v];
    shifted[v] = clamped * C::kLog2E + C::kRound;
    const Vector n = shifted[v] - C::kRound;
    r[v] = (clamped - n * C::kLn2High) - n * C::kLn2Low;
    p[v] = Vector{} + C::kPolynomial[0];
  }
#pragma GCC unroll 16
  for (std::size_t i = 1; i < C::kPolynomial.size(); ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) p[v] = p[v] * r[v] + C::kPolynomial[i];
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const Bits bits = __builtin_bit_cast(Bits, p[v]) + (__builtin_bit_cast(Bits, shifted[v]) << C::kMantissa);
    x[v] = x[v] < C::kLowest ? Vector{} : __builtin_bit_cast(Vector, bits);
  }
}

template <class C>
[[gnu::always_inline]] inline void exp_all(typename C::Value* values, std::size_t count) {
  const std::size_t whole = count / kBlockValues<C> * kBlockValues<C>;
  for (std::size_t i = 0; i < whole; i += kBlockValues<C>) exp_block<C>(values + i);
  if (whole == count) return;
  typename C::Value rest[kBlockValues<C>] = {};
  std::copy(values + whole, values + count, rest);
  exp_block<C>(rest);
  std::copy(rest, rest + (count - whole), values + whole);
}

}  // namespace

OSCAR_VECTOR_CLONES void exp_doubles(double* values, std::size_t count) { exp_all<DoubleConstants>(values, count); }
OSCAR_VECTOR_CLONES void exp_floats(float* values, std::size_t count) { exp_all<FloatConstants>(values, count); }

void exp_in_place(std::span<double> values) { exp_doubles(values.data(), values.size()); }
void exp_in_place(std::span<float> values) { exp_floats(values.data(), values.size()); }

}  // namespace oscar
