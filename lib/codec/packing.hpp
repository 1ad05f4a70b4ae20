// SPDX-License-Identifier: MIT
// How servers pack the 2-bit codes of a row of d channels into d / 4 bytes:
//   byte[i] = code[i] | code[i + d/4] << 2 | code[i + d/2] << 4 | code[i + 3d/4] << 6
#pragma once

#include <cstdint>
#include <span>

namespace oscar {

/// codes: d values of 0..3, d a multiple of 4; bytes: d / 4.
void pack_int2(std::span<const std::uint8_t> codes, std::span<std::uint8_t> bytes);
/// The inverse.
void unpack_int2(std::span<const std::uint8_t> bytes, std::span<std::uint8_t> codes);

}  // namespace oscar
