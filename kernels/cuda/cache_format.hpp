// SPDX-License-Identifier: MIT
// The format of a mixed-precision KV cache, as functions that kernels and tests on the host share.
//   stored   key and value rows in transformed coordinates, bfloat16 (kExact: fp32); windows are read from them
//   codes    of a row of d channels with 4 levels: byte i = code[i] | code[i + d/4] << 2 | code[i + d/2] << 4 |
//            code[i + 3d/4] << 6. With other numbers of levels, or if 4 does not divide d: one code a byte
//   params   {scale, zero} of each group of neighbouring channels; decoded value = (code - zero) * scale
#pragma once

#include <cstdint>

#include "kernels/cuda/host_device.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

struct GroupParams {
  float scale, zero;
};

/// No sum follows the product: there is nothing that a compiler could contract to a fused multiply-add.
OSCAR_HOST_DEVICE inline float decoded_value(int code, GroupParams group) {
  return (static_cast<float>(code) - group.zero) * group.scale;
}

[[nodiscard]] inline bool is_packed(int levels, int dim) { return levels == 4 && dim % 4 == 0; }

/// Byte i of the packed row of `dim` codes.
OSCAR_HOST_DEVICE inline std::uint8_t packed_byte(const std::uint8_t* codes, int dim, int i) {
  const int quarter = dim / 4;
  return static_cast<std::uint8_t>(codes[i] | codes[i + quarter] << 2 | codes[i + 2 * quarter] << 4 |
                                   codes[i + 3 * quarter] << 6);
}
/// The code that byte i of a row has for channel i + part * d/4.
OSCAR_HOST_DEVICE inline int packed_code(std::uint8_t byte, int part) { return byte >> (2 * part) & 3; }

/// Whether a query at `position` reads this key and its value as stored; else through the codec. For key <= position.
OSCAR_HOST_DEVICE inline bool in_window(std::int64_t key, std::int64_t position, Windows windows) {
  return key < windows.sink || key > position - windows.recent;
}

/// Which readings of the keys [first, last] some query at a position in [lowest, highest] needs.
struct TileReadings {
  bool stored, decoded;
};
OSCAR_HOST_DEVICE inline TileReadings tile_readings(std::int64_t first, std::int64_t last, std::int64_t lowest,
                                                    std::int64_t highest, Windows windows) {
  return {first < windows.sink || last > lowest - windows.recent,
          last >= windows.sink && first <= highest - windows.recent};
}

}  // namespace oscar::cuda
