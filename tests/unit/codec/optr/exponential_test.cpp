// SPDX-License-Identifier: MIT
#include "codec/optr/exponential.hpp"

#include <doctest/doctest.h>

#include <cmath>

namespace oscar::optr {

TEST_CASE("the exponential of a turn in the plane, small and large") {
  for (const double angle : {0.0, 0.3, -40.0}) {
    const Matrix turn = turn_of(Matrix{5, angle, 0, -7}, 2);  // what is on the diagonal cancels
    const Matrix expected{std::cos(angle), std::sin(angle), -std::sin(angle), std::cos(angle)};
    for (std::size_t i = 0; i < 4; ++i) CHECK(std::abs(turn[i] - expected[i]) < 1e-12);
  }
}

TEST_CASE("the gradient of A is that of differences") {
  const Matrix weights{0.3, -1.2, 0.8, 2, 0.1, -0.4, 1.5, -0.9, 0.6};
  const auto value = [&](const Matrix& a) {
    const Matrix turn = turn_of(a, 3);
    double sum = 0;
    for (std::size_t i = 0; i < 9; ++i) sum += weights[i] * turn[i] * turn[i];
    return sum;
  };
  Matrix a{0.1, 0.9, -1.4, 0.3, 0.2, 2.1, 0.5, -0.6, 0};
  const Matrix turn = turn_of(a, 3);
  Matrix by_turn(9);
  for (std::size_t i = 0; i < 9; ++i) by_turn[i] = 2 * weights[i] * turn[i];
  const Matrix found = pull_back(a, by_turn, 3);
  constexpr double kStep = 1e-5;
  for (std::size_t i = 0; i < 9; ++i) {
    CAPTURE(i);
    Matrix more = a, less = a;
    more[i] += kStep, less[i] -= kStep;
    CHECK(std::abs(found[i] - (value(more) - value(less)) / (2 * kStep)) < 1e-8);
  }
  CHECK(std::abs(found[1]) > 0.1);
}

}  // namespace oscar::optr
