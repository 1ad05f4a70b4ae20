// SPDX-License-Identifier: MIT
// How the codes of a row of d channels, and the scales and zeros of its groups, become bytes. There are two layouts
// of codes.
//
// INT2 is what servers read (oscar/int2_attention.h): 4 levels, d a multiple of 4, d / 4 bytes.
//   byte[i] = code[i] | code[i + d/4] << 2 | code[i + d/2] << 4 | code[i + 3d/4] << 6
//
// Radix words take any number L of levels. n codes make a word c_0 + L c_1 + L^2 c_2 + ..., where n is what takes the
// fewest bits a code in words of at most 8 bits: three codes of 5 levels in 7, five of 3 levels in 8, powers of two by
// themselves. Words follow each other from the lowest bit of the first byte on. Zeros fill the last word and the last
// byte.
//
// Every function throws std::logic_error for codes that have more than their levels, and for spans of the wrong size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.hpp"

namespace oscar::reference {

/// Packs d codes of 0 to 3 into d / 4 bytes as INT2; d is a multiple of 4.
void pack_int2(std::span<const std::uint8_t> codes, std::span<std::uint8_t> bytes);
/// Unpacks what pack_int2() wrote.
void unpack_int2(std::span<const std::uint8_t> bytes, std::span<std::uint8_t> codes);

/// A radix word: `codes` codes in `bits` bits.
struct RadixWord {
  int codes, bits;
};
/// Returns the radix word of a number of levels, 2 to 256.
[[nodiscard]] RadixWord radix_word(int levels);
/// Returns how many bytes `count` codes take in radix words.
[[nodiscard]] std::size_t radix_bytes(int levels, std::size_t count);
/// Packs codes into radix_bytes(levels, codes.size()) bytes.
void pack_radix(std::span<const std::uint8_t> codes, int levels, std::span<std::uint8_t> bytes);
/// Unpacks what pack_radix() wrote.
void unpack_radix(std::span<const std::uint8_t> bytes, int levels, std::span<std::uint8_t> codes);

/// Returns how many bytes the codes of a row take: as INT2 where that is possible, else in radix words.
[[nodiscard]] std::size_t code_bytes(int levels, std::size_t count);
/// Packs codes into code_bytes(levels, codes.size()) bytes.
void pack_codes(std::span<const std::uint8_t> codes, int levels, std::span<std::uint8_t> bytes);
/// Unpacks what pack_codes() wrote.
void unpack_codes(std::span<const std::uint8_t> bytes, int levels, std::span<std::uint8_t> codes);

/// Writes scale and zero of each group, (groups, 2), in their type: float32, float16 or bfloat16, little-endian.
void pack_parameters(std::span<const float> pairs, DType dtype, std::span<std::uint8_t> bytes);
/// Reads what pack_parameters() wrote.
void unpack_parameters(std::span<const std::uint8_t> bytes, DType dtype, std::span<float> pairs);

/// Returns the bits of one code in a row of head_dim codes, padding included.
[[nodiscard]] double bits_per_code(int levels, int head_dim);
/// Returns the bits that a key code and a value code take together, padding included: in rows of their own, or as one
/// number k + K v in 4 bits, two channels a byte, where K V levels fit into 16 and that takes less.
[[nodiscard]] double bits_per_pair(int key_levels, int value_levels, int head_dim);

}  // namespace oscar::reference
