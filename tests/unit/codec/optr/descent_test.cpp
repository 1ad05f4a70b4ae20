// SPDX-License-Identifier: MIT
// The search on losses whose answer is known: turns in the plane, from the identity towards one radian.
#include "codec/optr/descent.hpp"

#include <doctest/doctest.h>

#include <cmath>

namespace oscar::optr {
namespace {

const std::vector<double> kIdentity{1, 0, 0, 1};
const std::vector<double> kTarget{std::cos(1.0), std::sin(1.0), -std::sin(1.0), std::cos(1.0)};

/// -<R, T> and its gradient -R^T T.
Loss towards(const std::vector<double>& target, std::span<const float> r) {
  Loss loss{0, std::vector<double>(4)};
  for (std::size_t i = 0; i < 4; ++i) loss.value -= r[i] * target[i];
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t j = 0; j < 2; ++j) loss.gradient[2 * i + j] = -(r[i] * target[j] + r[2 + i] * target[2 + j]);
  }
  return loss;
}

}  // namespace

TEST_CASE("the descent finds the rotation that the sequences ask for") {
  const auto [rotation, head] =
      descend([](std::size_t, std::span<const float> r) { return towards(kTarget, r); }, kIdentity, 2, 5, {});
  CHECK(head.kept());
  CHECK(head.before == doctest::Approx(-2 * std::cos(1.0)));
  for (std::size_t i = 0; i < 4; ++i) CHECK(std::abs(rotation[i] - kTarget[i]) < 0.1);
}

TEST_CASE("a rotation that the held-out sequence does not want is not kept") {
  const auto loss = [](std::size_t sequence, std::span<const float> r) {
    return towards(sequence < 4 ? kTarget : kIdentity, r);
  };
  const auto [rotation, head] = descend(loss, kIdentity, 2, 5, {});
  CHECK_FALSE(head.kept());
  CHECK(head.before == -2);
  CHECK(head.after > -1.5);
  CHECK(rotation == std::vector<float>{1, 0, 0, 1});
}

}  // namespace oscar::optr
