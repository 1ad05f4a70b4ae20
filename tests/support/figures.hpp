// SPDX-License-Identifier: MIT
// Figures of a model that libtorch runs: another processor adds in another order, last bits move, codes on an edge
// flip, and the figure moves with them. How far is measured by tests/bench/bench_last_bits.py, which reads the lines
// that are printed; bounds are some standard deviations of that.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace oscar::test {

/// Whether $OSCAR_TEST_BOUNDS is "off": figures are printed and not compared.
[[nodiscard]] inline bool only_prints_figures() {
  const char* bounds = std::getenv("OSCAR_TEST_BOUNDS");
  return bounds != nullptr && std::string_view(bounds) == "off";
}

/// Prints "figure: <name> <seen>", and checks that it is within `bound` of what is expected.
inline void check_figure(const std::string& name, double seen, double expected, double bound) {
  std::printf("figure: %s %.9g\n", name.c_str(), seen);
  if (only_prints_figures()) return;
  CHECK_MESSAGE(std::abs(seen - expected) <= bound, name, " is ", seen, ", expected ", expected, " within ", bound);
}

}  // namespace oscar::test
