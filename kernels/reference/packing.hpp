// SPDX-License-Identifier: MIT
// How rows become bytes: codes, the scales and zeros of their groups, and rows of the history of either kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/types.hpp"
#include "tensor/dtype.hpp"

namespace oscar::reference {

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
