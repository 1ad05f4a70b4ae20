// SPDX-License-Identifier: MIT
// Values rounded to narrow floating-point formats, kept as float: nearest, ties to even, saturating at the largest
// finite value.
#pragma once

namespace oscar::methods {

/// Whole numbers, ties to even, whatever the rounding mode of the process.
[[nodiscard]] inline float round_even(float x) {
  constexpr float kShift = 12582912;  // 1.5 * 2^23: the sum has no fraction bits left
  return x > -4194304 && x < 4194304 ? (x + kShift) - kShift : x;
}

enum class NumberFormat { kF32, kF16, kE4M3 };

[[nodiscard]] float round_to(NumberFormat format, float x);
/// Sign, 4 exponent bits, 3 of mantissa; largest 448.
[[nodiscard]] float round_to_e4m3(float x);
/// Sign, 2 exponent bits, 1 of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
[[nodiscard]] float round_to_e2m1(float x);

inline constexpr float kLargestE4M3 = 448, kLargestE2M1 = 6;

}  // namespace oscar::methods
