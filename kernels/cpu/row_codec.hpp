// SPDX-License-Identifier: MIT
// The codec of one (token, head) row, as servers compute it: fp32 throughout, every operation rounded once.
//   clip:   threshold = the min(int(ratio * d), d - 1)-th smallest |x| of the whole row; x clamped to +-threshold
//   encode: per group  s = max(max - min, 1e-8) / (levels - 1),  z = -min / s,  code = trunc(x / s + z + 0.5)
//   lsq, lloyd-max: kernels/README.md, in fp64 per group; scale and zero are rounded to fp32 at the end
//   store:  scale and zero rounded to their dtype
//   decode: (code - z) * s
#pragma once

#include <cstdint>
#include <span>

#include "kernels/types.hpp"

namespace oscar::cpu {

/// The value that |x| is clamped to. scratch: as long as the row.
[[nodiscard]] float clip_threshold(std::span<const float> row, double ratio, ClipSearch search,
                                   std::span<float> scratch);

/// One group. codes: as many as values.
struct GroupParams {
  float scale, zero;
};
GroupParams encode_group(std::span<const float> group, int levels, std::span<std::uint8_t> codes);
GroupParams encode_group_lsq(std::span<const float> group, int levels, std::span<std::uint8_t> codes);
/// 4 levels.
GroupParams encode_group_lloyd_max(std::span<const float> group, std::span<std::uint8_t> codes);

/// One whole row -> decoded values; codes (head_dim), params (groups). scratch: head_dim values.
void encode_row(std::span<const float> row, const RowCodec& codec, int group_size, std::span<float> scratch,
                std::span<std::uint8_t> codes, std::span<GroupParams> params);

}  // namespace oscar::cpu
