// SPDX-License-Identifier: MIT
// The codec of one row of keys or values, and the order in which codecs add.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "kernels/types.hpp"

namespace oscar::reference {

// The order in which the codecs add, which decides their last bits.

/// Returns the sum of term(i) for i below `count`. Terms i, i + 32, … go into strand i; then each strand takes in the
/// one 16 behind it, 8, 4, 2 and 1. Number: double or float, with one rounding an addition.
template <class Number, class Term>
[[nodiscard]] Number strand_sum(std::size_t count, const Term& term) {
  std::array<Number, 32> strands{};
  for (std::size_t i = 0; i < count; ++i) strands[i % 32] += term(i);
  for (std::size_t step = 16; step > 0; step /= 2) {
    for (std::size_t i = 0; i < step; ++i) strands[i] += strands[i + step];
  }
  return strands[0];
}

// The codec of one row of keys or values: one token and KV head, d channels. A row is clipped as a whole; then each
// group of channels gets a code per channel and an affine map back, x^ = (code - zero) * scale.
//   minmax     the grid spans a group's values, as servers do (OSCAR, arXiv 2605.17757, and its runtime)
//   lloyd-max  4 levels with thresholds of the best quantiser for a Gaussian (J. Max 1960), OSCAR's published option
// kernels/README.md has the formulas. Rows, scales and zeros are float32. minmax and the clip round every operation to
// float32; lloyd-max computes in fp64, with sums in the order of strand_sum(), and rounds scale and zero at the end. So
// codes, scales and zeros are defined to the bit.

/// Returns the magnitude that |x| is clamped to: the min(int(ratio * d), d - 1)-th smallest of the row, or what
/// bisection finds in its place. `ratio` is positive.
[[nodiscard]] float clip_threshold(std::span<const float> row, double ratio, ClipSearch search);

/// Encodes a row of d channels: d codes, and scale and zero of each group as `scale_dtype` holds them. Throws
/// UsageError for a codec that does not fit d (checked_group_size).
[[nodiscard]] QuantizedRows encode_row(const RowCodec& codec, std::span<const float> row);

/// Decodes one row of d channels into `row`.
void decode_row(const QuantizedRows& encoded, std::span<float> row);

}  // namespace oscar::reference
