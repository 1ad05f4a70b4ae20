// SPDX-License-Identifier: MIT
#include "base/exp.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/vector_clones.hpp"

namespace oscar {
namespace {

// Adding 1.5 * 2^52 (2^23) leaves the nearest integer in the low mantissa bits; ln 2 is split so that n * high is
// exact.
struct DoubleConstants {
  static constexpr double kLowest = -708.0, kLog2E = 1.4426950408889634, kRound = 0x1.8p52;
  static constexpr double kLn2High = 0x1.62e42fefa38p-1, kLn2Low = 0x1.ef35793c7673p-45;
};
struct FloatConstants {
  static constexpr float kLowest = -87.0F, kLog2E = 1.44269504F, kRound = 0x1.8p23F;
  static constexpr float kLn2High = 0x1.62e4p-1F, kLn2Low = 0x1.7f7d1cp-20F;
};

}  // namespace

OSCAR_VECTOR_CLONES void exp_doubles(double* values, std::size_t count) {
  using C = DoubleConstants;
  for (std::size_t i = 0; i < count; ++i) {
    const double x = values[i];
    const double clamped = x < C::kLowest ? C::kLowest : x;
    const double shifted = clamped * C::kLog2E + C::kRound;
    const double n = shifted - C::kRound;
    const double r = (clamped - n * C::kLn2High) - n * C::kLn2Low;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    const std::uint64_t bits = std::bit_cast<std::uint64_t>(p) + (std::bit_cast<std::uint64_t>(shifted) << 52);
    values[i] = x < C::kLowest ? 0.0 : std::bit_cast<double>(bits);
  }
}

OSCAR_VECTOR_CLONES void exp_floats(float* values, std::size_t count) {
  using C = FloatConstants;
  for (std::size_t i = 0; i < count; ++i) {
    const float x = values[i];
    const float clamped = x < C::kLowest ? C::kLowest : x;
    const float shifted = clamped * C::kLog2E + C::kRound;
    const float n = shifted - C::kRound;
    const float r = (clamped - n * C::kLn2High) - n * C::kLn2Low;
    float p = 1.0F / 5040.0F;
    p = p * r + 1.0F / 720.0F;
    p = p * r + 1.0F / 120.0F;
    p = p * r + 1.0F / 24.0F;
    p = p * r + 1.0F / 6.0F;
    p = p * r + 0.5F;
    p = p * r + 1.0F;
    p = p * r + 1.0F;
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(p) + (std::bit_cast<std::uint32_t>(shifted) << 23);
    values[i] = x < C::kLowest ? 0.0F : std::bit_cast<float>(bits);
  }
}

void exp_in_place(std::span<double> values) { exp_doubles(values.data(), values.size()); }
void exp_in_place(std::span<float> values) { exp_floats(values.data(), values.size()); }

}  // namespace oscar
