// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <thread>

#include "base/errors.hpp"
#include "base/status.hpp"

namespace oscar {

TEST_CASE("a stop is heard in its scope and its thread only") {
  std::atomic<bool> outer = false, inner = false;
  {
    const StopScope scope(outer);
    CHECK_FALSE(interrupt_requested());
    outer = true;
    CHECK_THROWS_AS(throw_if_interrupted(), Interrupted);
    bool elsewhere = true;
    std::thread([&] { elsewhere = interrupt_requested(); }).join();
    CHECK_FALSE(elsewhere);
    {
      const StopScope other(inner);
      CHECK_FALSE(interrupt_requested());
      inner = true;
      CHECK(interrupt_requested());
    }
    CHECK(interrupt_requested());
  }
  CHECK_FALSE(interrupt_requested());
}

}  // namespace oscar
