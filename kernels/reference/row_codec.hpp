// SPDX-License-Identifier: MIT
// The codec of one row of keys or values, and the order in which codecs add.
// It also says how rows become bytes: codes, the scales and zeros of their groups, and rows of the history of either
// kind.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/types.hpp"
#include "tensor/dtype.hpp"

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

/// Returns the magnitude that |x| is clamped to: the min(int(ratio * d), d - 1)-th smallest of the row.
/// `ratio` is positive.
[[nodiscard]] float clip_threshold(std::span<const float> row, double ratio);

/// Quantised rows: codes and the affine map x^ = (code - zero) * scale of each group.
struct QuantizedRows {
  std::vector<std::uint8_t> codes;  // (rows, head_dim), one code a byte
  std::vector<float> scale, zero;   // (rows, head_dim / group_size)
};

/// Encodes a row of d channels: d codes, and scale and zero of each group as `scale_dtype` holds them. Throws
/// UsageError for a codec that does not fit d (checked_group_size).
[[nodiscard]] QuantizedRows encode_row(const RowCodec& codec, std::span<const float> row);

/// Decodes one row of d channels into `row`.
void decode_row(const QuantizedRows& encoded, std::span<float> row);

// How the codes of a row of d channels, and the scales and zeros of its groups, become bytes. Codes of 4 levels are
// INT2, as SGLang keeps them, where d is a multiple of 4:
//   byte[i] = code[i] | code[i + d/4] << 2 | code[i + d/2] << 4 | code[i + 3d/4] << 6        (d / 4 bytes)
// All others are methods that a set is compared with, which nobody serves: a code is a byte.
//
// Every function throws std::logic_error for codes that have more than their levels, and for spans of the wrong size.

/// Returns how many bytes the codes of a row take.
[[nodiscard]] std::size_t code_bytes(int levels, std::size_t count);
/// Packs codes into code_bytes(levels, codes.size()) bytes.
void pack_codes(std::span<const std::uint8_t> codes, int levels, std::span<std::uint8_t> bytes);
/// Unpacks what pack_codes() wrote.
void unpack_codes(std::span<const std::uint8_t> bytes, int levels, std::span<std::uint8_t> codes);

/// Writes scale and zero of each group, (groups, 2), in their type: float32, float16 or bfloat16, little-endian.
void pack_parameters(std::span<const float> pairs, DType dtype, std::span<std::uint8_t> bytes);
/// Reads what pack_parameters() wrote.
void unpack_parameters(std::span<const std::uint8_t> bytes, DType dtype, std::span<float> pairs);

// A packed row of the history: the row of one token and KV head as the bytes that a cache keeps. A history's codec says
// which kind it is.
//   row codec     the codes, then scale and zero of each group
//   coded cache   the row in a page of one token that holds nothing else (coded_page.hpp)
// Every row of a KV head and side has the same size.

/// Returns the bytes of a packed row of d channels.
[[nodiscard]] std::size_t packed_row_bytes(const HistoryCodec& codec, int kv_head, std::size_t dim);

/// Encodes and packs row (d) into bytes (packed_row_bytes).
void encode_packed_row(const HistoryCodec& codec, int kv_head, std::span<const float> row,
                       std::span<std::uint8_t> bytes);

/// Unpacks and decodes bytes (packed_row_bytes) into row (d).
void decode_packed_row(const HistoryCodec& codec, int kv_head, std::span<const std::uint8_t> bytes,
                       std::span<float> row);

}  // namespace oscar::reference
