// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

#include "base/threads.hpp"

using namespace oscar;

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
