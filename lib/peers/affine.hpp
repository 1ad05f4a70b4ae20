// SPDX-License-Identifier: MIT
// The affine quantiser of a group of values, in the variants that other people's methods use; each replaces the values
// by what a reader of the codes gets.
//   range:   low, high = shrink * (min, max), widened to contain 0 if include_zero
//   scale:   s = max((high - low) / (levels - 1), smallest_scale)
//   kMinimum:        q = clamp(round((x - low) / s)),          x^ = q s + low
//   kInteger:        z = even(-low / s), q = clamp(round(x / s) + z),  x^ = (q - z) s
//   kIntegerShifted: z = even(-low / s), q = clamp(round(x / s + z)),  x^ = (q - z) s
// The minimum, and the scale beside it, are rounded to their format after the codes were found; the scale beside a
// whole zero point before, or their product would miss the range. The codec of OSCAR's servers, whose zero point is a
// real number, is RowCodec.
#pragma once

#include <span>

#include "peers/number_formats.hpp"
#include "peers/sides.hpp"

namespace oscar::methods {

enum class Rounding {
  kEven,  // nearest, ties to even
  kUp     // floor(x + 0.5)
};
enum class ZeroPoint { kMinimum, kInteger, kIntegerShifted };

struct Affine {
  int levels = 4;
  Rounding rounding = Rounding::kEven;
  ZeroPoint zero = ZeroPoint::kMinimum;
  NumberFormat parameters = NumberFormat::kF16;  // of the scale and the minimum
  bool include_zero = false;
  float shrink = 1;
  float smallest_scale = 0x1p-24F;  // the smallest of fp16

  void operator()(std::span<float> group) const;
  /// Bits of one code.
  [[nodiscard]] double code_bits() const;
};

/// Two parameters a group, see sides.hpp.
[[nodiscard]] SideMethod affine_by_token(const Affine& affine, int group);
[[nodiscard]] SideMethod affine_by_channel(const Affine& affine, int group);

}  // namespace oscar::methods
