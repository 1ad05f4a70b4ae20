// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include "console.hpp"

namespace oscar {
namespace {

using namespace std::chrono_literals;

}  // namespace

TEST_CASE("a log gets a line an interval") {
  const ProgressLines::Time start{};
  ProgressLines lines(5s, true, start);
  CHECK_FALSE(lines.is_due("fit", false, start + 1s));
  CHECK_FALSE(lines.is_due("fit", false, start + 4s));
  CHECK(lines.is_due("fit", false, start + 5s));
  CHECK_FALSE(lines.is_due("fit", false, start + 9s));
  CHECK(lines.is_due("fit", false, start + 12s));
  CHECK(lines.is_due("fit", true, start + 13s));  // the end
}

TEST_CASE("the end of a short stage is told where every end is") {
  const ProgressLines::Time start{};
  ProgressLines all(5s, true, start), long_ones(30s, false, start);
  CHECK(all.is_due("short", true, start + 1s));
  CHECK_FALSE(long_ones.is_due("short", true, start + 1s));
  CHECK(long_ones.is_due("long", false, start + 31s));
  CHECK(long_ones.is_due("long", true, start + 40s));
  CHECK_FALSE(long_ones.is_due("long", true, start + 41s));  // once
  CHECK_FALSE(long_ones.is_due("short", true, start + 42s));
}

}  // namespace oscar
