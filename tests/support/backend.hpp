// SPDX-License-Identifier: MIT
// The backend that tests of lib/ compute with: scripts/gpu/test.sh runs the same tests with the GPU.
#pragma once

#include <cstdlib>
#include <memory>

#include "base/status.hpp"
#include "kernels/backend.hpp"

namespace oscar::test {

/// The device that OSCAR_DEVICE names, the CPU without it. Throws what make_backend() does.
[[nodiscard]] inline std::unique_ptr<Backend> make_test_backend() {
  static Status silent;
  const char* device = std::getenv("OSCAR_DEVICE");
  return make_backend(device != nullptr ? device : "cpu", silent);
}

}  // namespace oscar::test
