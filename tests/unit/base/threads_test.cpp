// SPDX-License-Identifier: MIT
#include "base/threads.hpp"

#include <doctest/doctest.h>
#include <sched.h>

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

TEST_CASE("a thread that is bound to one core has that core only") {
  const int all = usable_cores();
  CHECK(all >= 1);
  int bound = 0;
  std::thread([&] {
    cpu_set_t own, one;
    REQUIRE(::sched_getaffinity(0, sizeof own, &own) == 0);
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
      if (CPU_ISSET(core, &own)) CPU_SET(core, &one);
    }
    REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
    bound = usable_cores();
  }).join();
  CHECK(bound == 1);
  CHECK(usable_cores() == all);
}

}  // namespace oscar
