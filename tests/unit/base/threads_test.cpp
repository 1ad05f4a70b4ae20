// SPDX-License-Identifier: MIT
#include "base/threads.hpp"

#include <doctest/doctest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/errors.hpp"
#include "base/status.hpp"

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

TEST_CASE("what ends its process, or hangs, does not survive, and this process does") {
  int here = 0;
  CHECK(survives([&] { here = 1; }, 10));
  CHECK(here == 0);
  CHECK(survives([] { throw std::runtime_error("seen by the caller, too"); }, 10));
  CHECK_FALSE(survives([] { std::abort(); }, 10));
  CHECK_FALSE(survives([] { *static_cast<volatile int*>(nullptr) = 1; }, 10));
  CHECK_FALSE(survives([] { ::_exit(3); }, 10));
  CHECK_FALSE(survives([] { ::pause(); }, 1));
}

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
