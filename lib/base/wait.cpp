// SPDX-License-Identifier: MIT
#include "base/wait.hpp"

#include <algorithm>
#include <thread>

#include "base/clock.hpp"
#include "base/status.hpp"

namespace oscar {

bool wait_until(const std::function<bool()>& done, double seconds) {
  const auto start = std::chrono::steady_clock::now();
  for (double pause = 20e-6;; pause = std::min(1.5 * pause, 0.002)) {
    throw_if_interrupted();
    if (done()) return true;
    if (seconds_since(start) > seconds) return false;
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
  }
}

}  // namespace oscar
