// SPDX-License-Identifier: MIT
// What the decode kernel of oscar/coded_attention.h is told about the packed rows of one KV head: which bits of which
// bytes are the codes of which channels, in the order in which the kernel multiplies them.
//
// A part is the bits that a block of 8 channels has in one byte of each string. An operand is 16 rows or columns of a
// matrix product: one part of the low and one of the high bytes of the words of a piece of 16 bytes, either of which
// may be missing, or one part of a piece of 8 bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "oscar/coded_attention.h"

namespace oscar::cuda {

inline constexpr int kMostKeyOperands = 64, kMostValueOperands = 32;  // of a KV head
inline constexpr int kWideBits = 4;                                   // from which on a channel has the wide scale
inline constexpr int kPlaneBytes = 512;                               // of a piece of 32 rows in shared memory

/// The channels of an operand: [0][j] of the low byte of word j, [1][j] of its high byte.
struct CodedOperandChannels {
  float factor[2]
              [8];  // what a unit of the masked byte is worth in the channel's coordinate; 0 where there is no channel
  float middle[2];  // half of what the mask lets through: the middle of the codes
  std::int16_t channel[2][8];  // -1: none
};

/// Two operands, parts of the plane at offset `plane` in shared memory. The kernel shifts an operand's bytes of the
/// keys to the right before it masks them, so that its units are about as large as the others'.
struct CodedKeyPair {
  std::uint32_t mask[2], shift[2];  // `plane` is in shift[0], from bit 8 on
};
struct CodedValuePair {
  struct {
    std::uint32_t low, high;
  } mask[2];
  std::uint32_t plane, narrow[2], unused;  // narrow: whether the operand has the narrow scale
};

struct alignas(16) CodedHeadTable {
  std::int64_t first_byte;                // of the head in a page of one token
  std::int32_t full_planes, half_planes;  // of 16 and of 8 bytes a token
  std::int32_t key_pairs, wide_key_pairs, value_pairs, unused;
  CodedKeyPair key_pair[kMostKeyOperands / 2 + 1];  // one more, so that a reader can look ahead
  CodedValuePair value_pair[kMostValueOperands / 2];
  CodedOperandChannels keys[kMostKeyOperands], values[kMostValueOperands];
};

/// The tables of all KV heads; fills `layout` but for its table. Throws std::invalid_argument that says what is wrong.
[[nodiscard]] std::vector<CodedHeadTable> coded_tables(const oscar_coded_format& format, oscar_coded_layout& layout);

}  // namespace oscar::cuda
