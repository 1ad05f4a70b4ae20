// SPDX-License-Identifier: MIT
// What a packed row of the coded cache says of one channel. Only for .cu files.
#pragma once

#include "kernels/cuda/coded_rows.hpp"

namespace oscar::cuda {

inline constexpr int kCodedBlockChannels = 8;

/// The value of a code. Both factors of the first product are exact, so nothing here depends on contraction.
__device__ inline float coded_value(int code, const CodedChannel& channel, float scale) {
  return (static_cast<float>(code) - 0.5F * static_cast<float>((1 << channel.bits) - 1)) * channel.step * scale;
}

/// The code of channel i of a packed row: pieces of 8, 4, 2 and 1 bits, the largest first.
__device__ inline int coded_code(const std::uint8_t* row, const CodedChannel& channel, int i) {
  const int place = i % kCodedBlockChannels;
  int code = 0;
  for (int piece = 8; piece > 0; piece /= 2) {
    if ((channel.bits & piece) == 0) continue;
    const int before = channel.bits & ~(2 * piece - 1), below = channel.bits & (piece - 1);
    const int byte = row[channel.first_byte + before + place % piece];
    code |= (byte >> (piece * (place / piece)) & ((1 << piece) - 1)) << below;
  }
  return code;
}

/// Channel i of a packed row of `head`; 0 if it is not stored.
__device__ inline float decoded_channel(const CodedView& formats, std::int64_t head, const std::uint8_t* row, int i) {
  const CodedHead& format = formats.heads[head];
  if (i >= format.stored) return 0.0F;
  const CodedChannel& channel = formats.channels[head * formats.dim + i];
  const float scale = formats.scales[row[format.row_bytes - (i < format.wide ? 2 : 1)]];
  return coded_value(coded_code(row, channel, i), channel, scale);
}

}  // namespace oscar::cuda
