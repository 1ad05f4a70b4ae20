// SPDX-License-Identifier: MIT
// The codec of one row of keys or values: one token and KV head, d channels. A row is clipped as a whole; then each
// group of channels gets a code per channel and an affine map back, x^ = (code - zero) * scale.
//   minmax     the grid spans a group's values, as servers do (OSCAR, arXiv 2605.17757, and its runtime)
//   lloyd-max  4 levels with thresholds of the best quantiser for a Gaussian (J. Max 1960), OSCAR's published option
// kernels/README.md has the formulas. Rows, scales and zeros are float32. minmax and the clip round every operation to
// float32; lloyd-max computes in fp64, with sums in the order of strand_sum(), and rounds scale and zero at the end. So
// codes, scales and zeros are defined to the bit.
#pragma once

#include <span>

#include "kernels/types.hpp"

namespace oscar::reference {

/// Returns the magnitude that |x| is clamped to: the min(int(ratio * d), d - 1)-th smallest of the row, or what
/// bisection finds in its place. `ratio` is positive.
[[nodiscard]] float clip_threshold(std::span<const float> row, double ratio, ClipSearch search);

/// Encodes a row of d channels: d codes, and scale and zero of each group as `scale_dtype` holds them. Throws
/// UsageError for a codec that does not fit d (checked_group_size).
[[nodiscard]] QuantizedRows encode_row(const RowCodec& codec, std::span<const float> row);

/// Decodes one row of d channels into `row`.
void decode_row(const QuantizedRows& encoded, std::span<float> row);

}  // namespace oscar::reference
