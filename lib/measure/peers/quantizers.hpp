// SPDX-License-Identifier: MIT
// Quantisers of a group of values; each replaces the values by what a reader of the codes gets.
#pragma once

#include <span>
#include <vector>

#include "measure/peers/sides.hpp"

namespace oscar::methods {

/// Whole numbers, ties to even, whatever the rounding mode of the process.
[[nodiscard]] inline float round_even(float x) {
  constexpr float kShift = 12582912;  // 1.5 * 2^23: the sum has no fraction bits left
  return x > -4194304 && x < 4194304 ? (x + kShift) - kShift : x;
}

// Values rounded to narrow formats, kept as float: nearest, ties to even, saturating at the largest finite value.
[[nodiscard]] float round_to_f16(float x);
/// Sign, 4 exponent bits, 3 of mantissa; largest 448.
[[nodiscard]] float round_to_e4m3(float x);
/// Sign, 2 exponent bits, 1 of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
[[nodiscard]] float round_to_e2m1(float x);
inline constexpr float kLargestE4M3 = 448, kLargestE2M1 = 6;

enum class Rounding {
  kEven,  // nearest, ties to even
  kUp     // floor(x + 0.5)
};
enum class ZeroPoint { kMinimum, kInteger, kIntegerShifted };

/// The affine quantiser, in the variants that other people's methods use:
///   range:   low, high = min, max, widened to contain 0 if include_zero
///   scale:   s = max((high - low) / (levels - 1), smallest_scale)
///   kMinimum:        q = clamp(round((x - low) / s)),          x^ = q s + low
///   kInteger:        z = even(-low / s), q = clamp(round(x / s) + z),  x^ = (q - z) s
///   kIntegerShifted: z = even(-low / s), q = clamp(round(x / s + z)),  x^ = (q - z) s
/// The minimum, and the scale beside it, are rounded to fp16 after the codes were found; the scale beside a whole zero
/// point before, or their product would miss the range. The codec of OSCAR's servers, whose zero point is a real
/// number, is RowCodec.
struct Affine {
  int levels = 4;
  Rounding rounding = Rounding::kEven;
  ZeroPoint zero = ZeroPoint::kMinimum;
  bool include_zero = false;
  float smallest_scale = 0x1p-24F;  // the smallest of fp16

  void operator()(std::span<float> group) const;
};

/// Groups of `group` (0: all) neighbouring channels of each (token, head) row, two parameters each.
[[nodiscard]] SideMethod affine_by_token(const Affine& affine, int group);
/// Channel by channel, groups of `group` tokens, counted from the first token of the history; two parameters each.
[[nodiscard]] SideMethod affine_by_channel(const Affine& affine, int group);

/// Levels at any place.
struct Codebook {
  std::vector<float> levels;  // ascending
  std::vector<float> bounds;  // half-way between: x takes the level whose index is the number of bounds <= x

  /// Replaces each value by its nearest level.
  void take_nearest(std::span<float> values) const;
};
/// Least squared error for N(0, 1) (Lloyd 1982, Max 1960). bits: 1 to 4.
[[nodiscard]] Codebook gaussian_codebook(int bits);

}  // namespace oscar::methods
