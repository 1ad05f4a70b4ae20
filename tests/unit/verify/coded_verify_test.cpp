// SPDX-License-Identifier: MIT
// What a report shows of the coded cache without data.
#include <doctest/doctest.h>

#include <numeric>

#include "set/set.hpp"
#include "unit/verify/sample.hpp"
#include "verify/verdict/verdict.hpp"

namespace oscar {
namespace {

using namespace test;

const CodedPart& fitted() { return *Sample::get().all_parts().coded; }

}  // namespace

TEST_CASE("the report has the plan of every head: its channels by bits") {
  const TemporaryFolder folder;
  const Verified v = verified(written(folder, fitted()));
  CHECK(v.report.verdict == Verdict::kNotMeasured);
  REQUIRE(v.report.plan.size() == 8);
  double bits = 0;
  for (const HeadPlan& head : v.report.plan) {
    REQUIRE(head.channels.size() == 9);
    CHECK(std::accumulate(head.channels.begin(), head.channels.end(), 0) == 128);
    for (int b = 0; b <= 8; ++b) bits += b * head.channels[static_cast<std::size_t>(b)];
  }
  CHECK(bits / (8 * 128) + 16.0 / 128 == bits_of(fitted()));
  CHECK(v.report.plan[1].target == "value");
  CHECK(v.report.plan[6].layer == 3);
  CHECK(v.report.plan[0].target == "key");
}

}  // namespace oscar
