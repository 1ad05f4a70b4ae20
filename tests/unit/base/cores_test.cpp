// SPDX-License-Identifier: MIT
#include "base/cores.hpp"

#include <doctest/doctest.h>
#include <sched.h>

#include <thread>

namespace oscar {

TEST_CASE("a thread that is bound to one core has that core only") {
  const Cores all = usable_cores();
  CHECK(all.count >= 1);
  const int last = std::stoi(all.list.substr(all.list.find_last_of(",-") + 1));
  Cores bound;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
    bound = usable_cores();
  }).join();
  CHECK(bound.count == 1);
  CHECK(bound.list == std::to_string(last));
  CHECK(usable_cores().list == all.list);
}

}  // namespace oscar
