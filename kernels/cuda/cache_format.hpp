// SPDX-License-Identifier: MIT
// What kernels and tests on the host share of a mixed-precision KV cache: how a code is decoded, and who reads what.
#pragma once

#include <cstdint>

#include "kernels/host_device.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

struct GroupParams {
  float scale, zero;
};

/// No sum follows the product: there is nothing that a compiler could contract to a fused multiply-add.
OSCAR_HOST_DEVICE inline float decoded_value(int code, GroupParams group) {
  return (static_cast<float>(code) - group.zero) * group.scale;
}

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
