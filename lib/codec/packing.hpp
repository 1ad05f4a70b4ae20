// SPDX-License-Identifier: MIT
// How the codes of a row of d channels become bytes. Three layouts:
//   INT2     what servers read, 4 levels, d / 4 bytes:
//              byte[i] = code[i] | code[i + d/4] << 2 | code[i + d/2] << 4 | code[i + 3d/4] << 6
//   radix    any number L of levels, keys and values apart: n codes make a word c_0 + L c_1 + L^2 c_2 + ..., words
//   follow
//            each other from the lowest bit of the first byte on, the last word may lack codes (zeros), and the last
//            byte of the row bits. n is what takes the fewest bits a code in words of at most 8 bits: three codes of 5
//            levels in 7, five of 3 levels in 8, powers of two by themselves.
//   nibbles  a key and a value code of the same channel together, for products of levels up to 16 (4 x 4, 5 x 3, 8 x
//   2):
//            nibble[i] = k[i] + K v[i], byte[i] = nibble[i] | nibble[i + h] << 4 with h = d/2 rounded up
// Codes that have more than their levels are a fault of the caller (std::logic_error), as are spans of the wrong size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace oscar {

/// codes: d values of 0..3, d a multiple of 4; bytes: d / 4.
void pack_int2(std::span<const std::uint8_t> codes, std::span<std::uint8_t> bytes);
/// The inverse.
void unpack_int2(std::span<const std::uint8_t> bytes, std::span<std::uint8_t> codes);

/// `codes` codes in `bits` bits.
struct RadixWord {
  int codes, bits;
};
/// levels: 2 to 256.
[[nodiscard]] RadixWord radix_word(int levels);
/// Bytes of a row of `count` codes; its bits rounded up.
[[nodiscard]] std::size_t radix_bytes(int levels, std::size_t count);
/// bytes: radix_bytes(levels, codes.size()).
void pack_radix(std::span<const std::uint8_t> codes, int levels, std::span<std::uint8_t> bytes);
void unpack_radix(std::span<const std::uint8_t> bytes, int levels, std::span<std::uint8_t> codes);

/// Whether one key and one value code fit 4 bits.
[[nodiscard]] bool fit_nibble(int key_levels, int value_levels);
/// keys, values: d codes each; bytes: d/2 rounded up.
void pack_nibbles(std::span<const std::uint8_t> keys, int key_levels, std::span<const std::uint8_t> values,
                  int value_levels, std::span<std::uint8_t> bytes);
void unpack_nibbles(std::span<const std::uint8_t> bytes, int key_levels, std::span<std::uint8_t> keys,
                    std::span<std::uint8_t> values);

/// Bits that the two codes of a key and a value channel take together, padding of rows of d channels included: in
/// nibbles if they fit and take less, else apart.
[[nodiscard]] double bits_per_pair(int key_levels, int value_levels, int head_dim);
/// Bits of one code in rows of its own.
[[nodiscard]] double bits_per_code(int levels, int head_dim);

}  // namespace oscar
