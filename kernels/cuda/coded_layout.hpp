// SPDX-License-Identifier: MIT
// What the decode kernel of oscar/coded_attention.h is told about the packed rows of one KV head: which bits of which
// bytes are the codes of which channels, in the order in which the kernel multiplies them. What parts and operands are
// says kernels/reference/coded_operands.hpp.
#pragma once

#include <cstdint>
#include <vector>

#include "oscar/coded_attention.h"

namespace oscar::cuda {

inline constexpr int kMostKeyOperands = 64, kMostValueOperands = 32;  // of a KV head
inline constexpr int kMostBlocks = 32;                                // of 8 channels
inline constexpr int kPlaneBytes = 512;                               // of a piece of 32 rows in shared memory

/// Four bytes of an operand's rows, those that one lane multiplies: byte i is of channel[i] (-1: none), and a unit of
/// it is worth factor[i] in the channel's coordinate.
struct alignas(8) CodedKeyWord {
  float factor[4];
  std::int16_t channel[4];
};

/// A part of a block of the values: the sum of its masked bytes over tokens lies in row `slot` + j of the operands (16
/// rows each) for channel j of the block; in a piece of 8 bytes, in row slot + j / 2 + 8 * (j % 2).
struct alignas(16) CodedValuePart {
  std::int16_t slot;
  std::int8_t narrow, in_half;  // whether it has the narrow scale; whether it lies in a piece of 8 bytes
  float unit, middle;           // what a unit is worth in steps of the channel; the middle of the bytes
  std::int32_t unused;
};

/// Two operands that one product of the keys takes: the bits of theirs in planes at offsets `plane` in shared memory.
/// Those of a class come in two runs, of which the kernel shifts bytes of the second by 4 to the right before it masks
/// them, so that the units of most operands are about as large.
struct alignas(16) CodedKeyPair {
  std::uint32_t mask[2], plane[2];
};
/// Two operands of the same plane: their bits in low and in high bytes, repeated in all bytes of a word.
struct alignas(16) CodedValuePair {
  struct {
    std::uint32_t low, high;
  } mask[2];
};
/// The number of the plane of such a pair, and flags. Those of operands with the narrow scale are two bits each, which
/// a compiler tests by one instruction, where it would shift a single one.
struct CodedValueKind {
  static constexpr std::uint8_t kFirstNarrow = 3, kSecondNarrow = 12;
  static constexpr std::uint8_t kNewPlane = 16;  // the pair before has another plane, or there is none
  std::uint8_t plane, flags;
};
inline constexpr std::uint32_t kPairBits = 0x00ff00ff;

/// How many pairs of operands there are, and of which kinds those of the values are.
struct alignas(16) CodedPairs {
  std::int32_t key_end[2][2];  // those of each class of channels end here, those of lower and those of upper halves
  std::int32_t values, unused[3];
  CodedValueKind value[kMostValueOperands / 2];
};

struct alignas(16) CodedHeadTable {
  std::int64_t first_byte;                // of the head in a page of one token
  std::int32_t full_planes, half_planes;  // of 16 and of 8 bytes a token
  std::int32_t key_full_planes, key_half_planes;
  CodedPairs pairs;
  CodedKeyPair key_pair[kMostKeyOperands / 2 + 1];  // one more, so that a reader can look ahead
  CodedValuePair value_pair[kMostValueOperands / 2 + 1];
  CodedKeyWord key_word[kMostKeyOperands][4];
  CodedValuePart value_part[2 * kMostValueOperands];  // in the order of their blocks
  alignas(16) std::int32_t block_end[kMostBlocks];    // the block's parts end here, and the next block's begin
  alignas(16) float value_step[8 * kMostBlocks];
  alignas(16) float key_top[8 * kMostBlocks];  // the largest factor of a channel
};

/// The tables of all KV heads; fills `layout` but for its table. Throws std::invalid_argument that says what is wrong.
[[nodiscard]] std::vector<CodedHeadTable> coded_tables(const oscar_coded_format& format, oscar_coded_layout& layout);

}  // namespace oscar::cuda
