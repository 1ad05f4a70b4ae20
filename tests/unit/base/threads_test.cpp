// SPDX-License-Identifier: MIT
#include "base/threads.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace oscar {

TEST_CASE("of several tasks that fail the first one's error is thrown, even if it comes later") {
  std::string seen;
  try {
    parallel_for(
        8,
        [](std::size_t i) {
          if (i == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
          throw std::runtime_error("task " + std::to_string(i));
        },
        4);
  } catch (const std::runtime_error& error) {
    seen = error.what();
  }
  CHECK(seen == "task 0");
}

}  // namespace oscar
