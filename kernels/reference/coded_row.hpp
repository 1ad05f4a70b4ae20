// SPDX-License-Identifier: MIT
// A packed row of the coded cache: the row of one token and KV head in a basis whose channels have levels of their own.
// The set gives the format of each layer, KV head and side; every row of it has the same layout and size. All
// arithmetic is float32 with one rounding per operation, so that every backend makes the same bytes.
//
// Classes: channels with 16 levels or more are wide, those with 2 to 8 are narrow. A channel with one level is not
// stored.
//
// Scale: s(b) = 2^((b - 128) / 16) of a byte b. The byte of a class is the one whose scale is nearest, in ratio, to the
// root mean square of y_i / sigma_i over the class.
//
// Code: c_i = floor(y_i / (step_i s) + L_i / 2), held to 0 … L_i - 1. It stands for y^_i = s (c_i - (L_i - 1) / 2)
// step_i.
//
// Gain: a = <y, y> / <y, y^> over the stored channels, held to 1/2 … 2, multiplies both scales, which are rounded to
// bytes again; codes stay. It is 2 if <y, y^> is not positive, and 1 for rows of zeros or of infinite sums.
//
// Sums have 32 partial sums, of the channels i, i + 32, …, which are added in halves: sum l takes in sum l + 16, then
// l + 8, and so on.
//
// Blocks of 8 neighbouring channels share a number of levels. oscar/coded_attention.h and coded_page.hpp say where the
// bits of codes and scales lie.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/types.hpp"

namespace oscar::reference {

/// The number of neighbouring channels that share a number of levels.
inline constexpr std::size_t kCodedBlock = 8;
/// The bits from which on a channel is wide, and its least number of levels.
inline constexpr int kWideBits = 4, kWideLevels = 1 << kWideBits;

/// Throws std::logic_error that says what is wrong with a format.
void require_valid(const CodedFormat& format);

/// Bytes of a row: the sum of log2(levels) over the blocks, and two for the scales. Pages have eight strings of whole
/// bytes; formats that a plan makes for heads of 64 channels or more fill those.
[[nodiscard]] std::size_t coded_row_bytes(const CodedFormat& format);

/// s(b). byte: 0 to 255.
[[nodiscard]] float coded_scale(int byte);
/// The scale from which on `byte` is nearer than byte - 1: the geometric mean of theirs, 2^((byte - 128 - 1/2) / 16).
[[nodiscard]] float least_coded_scale(int byte);
/// The byte whose scale is nearest to `scale` in ratio; 0 for whatever is less than s(0), not a number included.
[[nodiscard]] std::uint8_t coded_scale_byte(float scale);

/// What a row becomes.
struct CodedCodes {
  std::vector<std::uint8_t> codes;     // (d), 0 where channels are not stored
  std::array<std::uint8_t, 2> scales;  // of the wide class and of the narrow one
};
/// Quantises row (d).
[[nodiscard]] CodedCodes coded_codes(const CodedFormat& format, std::span<const float> row);
/// The inverse: row (d); channels that are not stored become 0.
void coded_values(const CodedFormat& format, const CodedCodes& coded, std::span<float> row);

}  // namespace oscar::reference
