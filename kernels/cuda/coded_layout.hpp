// SPDX-License-Identifier: MIT
// What the decode kernel of oscar/coded_attention.h is told about the packed rows of one KV head: which bits of which
// bytes are the codes of which channels, in the order in which it multiplies them.
//
// The codes of a block of 8 channels are one or two parts, a part within one byte of each string. In a piece of 16
// bytes a part lies in the low or in the high bytes of the words; an operand, 16 rows or columns of a matrix product,
// is one part of the low and one of the high bytes. In a piece of 8 bytes an operand is one part.
#pragma once

#include <cstdint>
#include <vector>

#include "oscar/coded_attention.h"

namespace oscar::cuda {

inline constexpr int kMostKeyOperands = 64, kMostValueOperands = 32;  // of a KV head
inline constexpr int kWideBits = 4;                                   // from which on a channel has the wide scale
inline constexpr int kPlaneBytes = 512;                               // of a piece of 32 rows in shared memory

/// Where an operand's bytes lie, if not where those of the operand before do. Offset of the plane in shared memory in
/// the low half, by how many bits to shift right from bit 16 on.
using CodedSource = std::uint32_t;
inline constexpr CodedSource kNewSource = 0x80000000U, kNarrowSource = 0x40000000U;

/// The channels of an operand: [0][j] of the low byte of word j, [1][j] of its high byte.
struct CodedOperandChannels {
  float factor[2]
              [8];  // what a unit of the masked byte is worth in the channel's coordinate; 0 where there is no channel
  float middle[2];  // half of what the mask lets through: the middle of the codes
  std::int16_t channel[2][8];  // -1: none
};

struct CodedKeyPair {  // two operands of a product
  std::uint32_t mask0;
  CodedSource source0;
  std::uint32_t mask1;
  CodedSource source1;
};
struct CodedValueOperand {
  std::uint32_t low_mask, high_mask;
  CodedSource source;
  std::uint32_t unused;
};

struct alignas(16) CodedHeadTable {
  std::int64_t first_byte;                // of the head in a page of one token
  std::int32_t full_planes, half_planes;  // of 16 and of 8 bytes a token
  std::int32_t key_pairs, wide_key_pairs, value_operands, unused;
  CodedKeyPair key_pair[kMostKeyOperands / 2 + 1];  // one more, so that a reader can look ahead
  CodedValueOperand value_operand[kMostValueOperands + 1];
  CodedOperandChannels keys[kMostKeyOperands], values[kMostValueOperands];
};

/// The tables of all KV heads; fills `layout` but for its table. Throws std::invalid_argument that says what is wrong.
[[nodiscard]] std::vector<CodedHeadTable> coded_tables(const oscar_coded_format& format, oscar_coded_layout& layout);

}  // namespace oscar::cuda
