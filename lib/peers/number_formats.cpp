// SPDX-License-Identifier: MIT
#include "peers/number_formats.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "tensor/dtype.hpp"

namespace oscar::methods {
namespace {

/// A format without infinities: numbers from 2^lowest_exponent on have `mantissa_bits` after the leading one, smaller
/// ones share their spacing.
float round_to_small_float(float x, int mantissa_bits, int lowest_exponent, float largest) {
  const float magnitude = std::min(std::abs(x), largest);
  if (!(magnitude > 0)) return x;  // zero, NaN
  const int exponent = static_cast<int>(std::bit_cast<std::uint32_t>(magnitude) >> 23) - 127;
  const int spacing_exponent = std::max(exponent, lowest_exponent) - mantissa_bits;
  const auto spacing = std::bit_cast<float>(static_cast<std::uint32_t>(spacing_exponent + 127) << 23);
  return std::copysign(round_even(magnitude / spacing) * spacing, x);
}

}  // namespace

float round_to_e4m3(float x) { return round_to_small_float(x, 3, -6, kLargestE4M3); }
float round_to_e2m1(float x) { return round_to_small_float(x, 1, 0, kLargestE2M1); }

float round_to(NumberFormat format, float x) {
  switch (format) {
    case NumberFormat::kF16:
      return float_from_f16(f16_from_float(x));
    case NumberFormat::kE4M3:
      return round_to_e4m3(x);
    case NumberFormat::kF32:
      break;
  }
  return x;
}

}  // namespace oscar::methods
