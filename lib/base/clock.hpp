// SPDX-License-Identifier: MIT
// How long something took.
#pragma once

#include <chrono>

namespace oscar {

/// Wall time since `start`.
[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace oscar
