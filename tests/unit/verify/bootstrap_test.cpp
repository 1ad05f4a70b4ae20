// SPDX-License-Identifier: MIT
#include "verify/report/bootstrap.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace oscar {

using verify::bootstrap;

TEST_CASE("an interval needs two sequences and a denominator") {
  CHECK_FALSE(bootstrap(std::vector<double>{}, std::vector<double>{}).has_value());
  CHECK_FALSE(bootstrap(std::vector<double>{1}, std::vector<double>{1}).has_value());
  CHECK_FALSE(bootstrap(std::vector<double>{1, 2}, std::vector<double>{0, 1}).has_value());
}

TEST_CASE("two sequences: the interval holds both, for one draw in four repeats each of them") {
  const auto interval = bootstrap(std::vector<double>{1, 6}, std::vector<double>{1, 2});
  REQUIRE(interval.has_value());
  CHECK(interval->low == 1);
  CHECK(interval->high == 3);
}

TEST_CASE("equal sequences leave no doubt") {
  const auto interval = bootstrap(std::vector<double>(5, 0.5), std::vector<double>(5, 2.0));
  CHECK(interval->low == 0.25);
  CHECK(interval->high == 0.25);
}

TEST_CASE("of many sequences, the interval is that of a mean: 1.96 standard errors to each side") {
  std::vector<double> values;
  for (int i = 0; i < 100; ++i) values.push_back(i % 2 == 0 ? 0.0 : 1.0);
  const auto interval = bootstrap(values, std::vector<double>(100, 1.0));
  CHECK(interval->low == doctest::Approx(0.5 - 1.96 * 0.05).epsilon(0.03).scale(0));
  CHECK(interval->high == doctest::Approx(0.5 + 1.96 * 0.05).epsilon(0.03).scale(0));
  const auto again = bootstrap(values, std::vector<double>(100, 1.0));
  CHECK(again->low == interval->low);
}

}  // namespace oscar
