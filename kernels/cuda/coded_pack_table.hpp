// SPDX-License-Identifier: MIT
// What oscar_coded_pack() is told about the rows of a layer: scales, and for each KV head and side its channels and
// which bits of their codes go where.
#pragma once

#include <cstdint>
#include <vector>

#include "oscar/coded_pack.h"

namespace oscar::cuda {

inline constexpr int kMostPackParts = 64;        // of a KV head's side: each ends a block or fills a byte
inline constexpr int kMostPackPieces = 17;       // of a row
inline constexpr float kFloorBase = 8388608.0F;  // 2^23: from here on float32 has whole numbers only

/// The bits of a block's codes that go to one byte of each string.
struct CodedPackPart {
  alignas(16) float levels;
  float limit, middle;  // of the block: limit is kFloorBase + levels - 1
  float factor;         // times this, the bits that the mask keeps are where they belong in a 16-bit word of a piece
  std::uint32_t mask;   // of kFloorBase + code as float32: keeps kFloorBase and bits of the code
  std::int32_t block;
  float counts;  // 1 for the first part of a block, 0 for others
  std::int32_t unused;
};

struct CodedPackChannel {
  alignas(16) float inverse_variance;  // 1 / sigma^2
  float inverse_step;                  // 1 / (step levels)
  float step, inverse_sigma;
};

/// One KV head's keys, or values. Parts are in the order of the pieces, the one of 8 bytes first, wide ones before
/// narrow ones.
struct CodedPackSide {
  alignas(16) std::int64_t first_byte;       // of the head in a page of one token
  std::int32_t wide, stored;                 // blocks [0, wide) are wide, [wide, stored) narrow
  float wide_count, narrow_count;            // channels
  std::int32_t full, half;                   // pieces of 16 and of 8 bytes
  std::int32_t full_at, half_at, scales_at;  // bytes of a token before these planes, from the head's on
  std::int32_t end[kMostPackPieces][2];      // of the parts of each piece and class
  CodedPackPart part[kMostPackParts];
  float levels[32];  // of blocks
  CodedPackChannel channel[256];
};

/// What a scale byte stands for, the inverse, and the least scale that is rounded to it.
struct CodedPackScales {
  alignas(16) float scale[256], inverse[256], least[256];
};

struct CodedPackTable {
  CodedPackScales scales;
  CodedPackSide side[1];  // (2 num_kv_heads): keys, then values
};

/// The bytes of a table. Throws std::invalid_argument that says what is wrong.
[[nodiscard]] std::vector<unsigned char> coded_pack_table(const oscar_coded_format& format, const float* k_sigmas,
                                                          const float* v_sigmas);

}  // namespace oscar::cuda
