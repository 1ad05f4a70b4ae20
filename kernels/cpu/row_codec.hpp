// SPDX-License-Identifier: MIT
// The codec of one (token, head) row, fast: the same bits as kernels/reference/row_codec.hpp, which has the formulas'
// rounding. The loops are written for the vectoriser, and an encoder keeps its memory from row to row. Non-goals:
// bytes (packed_history.hpp), many rows (quantize.cpp).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/types.hpp"

namespace oscar::cpu {

/// Returns the value that |x| is clamped to. scratch: as long as the row.
[[nodiscard]] float clip_threshold(std::span<const float> row, double ratio, ClipSearch search,
                                   std::span<float> scratch);

/// The affine map back of one group: x^ = (code - zero) scale.
struct GroupParams {
  float scale, zero;
};
/// These encode one group into as many codes as it has values: minmax, and lloyd-max, which has 4 levels.
GroupParams encode_group(std::span<const float> group, int levels, std::span<std::uint8_t> codes);
GroupParams encode_group_lloyd_max(std::span<const float> group, std::span<std::uint8_t> codes);

/// Encodes rows of one size, one after the other.
class RowEncoder {
 public:
  RowEncoder(int head_dim, int group_size);

  /// Encodes a row of head_dim values; its codes and parameters stay until the next one.
  void encode(std::span<const float> row, const RowCodec& codec);
  [[nodiscard]] std::span<const std::uint8_t> codes() const { return codes_; }
  /// Scale and zero of each group as they are stored, (groups, 2).
  [[nodiscard]] std::span<const float> parameters() const { return parameters_; }

 private:
  std::size_t group_size_;
  std::vector<float> clipped_;
  std::vector<std::uint8_t> codes_;
  std::vector<float> parameters_;
};

/// Decodes the codes of a row by scale and zero of its groups, (groups, 2).
void decode_row(std::span<const std::uint8_t> codes, std::span<const float> parameters, std::span<float> row);

}  // namespace oscar::cpu
