// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "method/compose.hpp"
#include "support/backend.hpp"
#include "support/matrices.hpp"
#include "support/support.hpp"

namespace oscar {
TEST_CASE("hadamard is orthonormal for every head dimension, and flat where an order exists") {
  for (const int d : {1, 2, 4, 64, 128, 256, 12, 20, 28, 80, 96, 112, 160, 192, 224, 36, 72, 3}) {
    CAPTURE(d);
    const std::vector<double> h = hadamard(d);
    CHECK(test::orthogonality_error(h) < 1e-12);
    if (d == 36 || d == 72 || d == 3) continue;  // blocks
    const double flat = 1 / std::sqrt(static_cast<double>(d));
    CHECK(std::all_of(h.begin(), h.end(), [&](double v) { return std::abs(std::abs(v) - flat) < 1e-12; }));
  }
}

TEST_CASE("hadamard of order 4 is Sylvester's") {
  const double s = 0.5;
  CHECK(hadamard(4) == std::vector<double>{s, s, s, s, s, -s, s, -s, s, s, -s, -s, s, -s, -s, s});
}

TEST_CASE("the deal permutation is bit reversal for powers of two and spreads directions otherwise") {
  CHECK(deal_permutation(8) == std::vector<int>{7, 3, 5, 1, 6, 2, 4, 0});
  for (const int d : {96, 80, 7}) {
    std::vector<int> perm = deal_permutation(d);
    std::sort(perm.begin(), perm.end());
    for (int i = 0; i < d; ++i) REQUIRE(perm[static_cast<std::size_t>(i)] == i);
  }
  // Order 12 has 4 groups of 3; the 4 largest directions (8 … 11) land in different groups.
  const std::vector<int> perm = deal_permutation(12);
  for (int group = 0; group < 4; ++group) {
    CHECK(std::count_if(&perm[group * 3], &perm[group * 3] + 3, [](int p) { return p >= 8; }) == 1);
  }
}

TEST_CASE("a spectrum ascends and every eigenvector's largest component is positive") {
  const auto backend = test::make_test_backend();
  MatrixStack c(2, 2);
  c.data = {2, -1, -1, 2, 5, 0, 0, 3};

  const std::vector<Spectrum> spectra = decompose(c, *backend);

  const double s = std::sqrt(0.5);
  CHECK(spectra[0].values[0] == doctest::Approx(1));
  CHECK(spectra[0].values[1] == doctest::Approx(3));
  CHECK(spectra[0].vectors[0] == doctest::Approx(s));
  CHECK(spectra[0].vectors[2] == doctest::Approx(s));
  CHECK(spectra[1].values[0] == doctest::Approx(3));
  CHECK(spectra[1].values[1] == doctest::Approx(5));
  for (std::size_t i = 0; i < 4; ++i) CHECK(spectra[1].vectors[i] == doctest::Approx(i == 1 || i == 2 ? 1 : 0));
  c.data[0] = std::nan("");
  CHECK_ERROR(decompose(c, *backend), NumericalError, "not finite");
}

TEST_CASE("the composition as published is U H P") {
  const Spectrum spectrum{2, {1, 2}, {0.6, -0.8, 0.8, 0.6}};
  const double s = std::sqrt(0.5);
  const auto check = [&](Composition composition, std::vector<double> expected) {
    CAPTURE(std::string(name_of(composition)));
    const MatrixStack rotation = compose({spectrum}, composition);
    for (std::size_t i = 0; i < 4; ++i) CHECK(rotation.data[i] == doctest::Approx(expected[i]));
  };
  // P = I[:, {1, 0}]
  check(Composition::kPlain, {0.6, -0.8, 0.8, 0.6});
  check(Composition::kRHPbr, {1.4 * s, -0.2 * s, 0.2 * s, 1.4 * s});
  CHECK_ERROR(composition_from_name("rh"), UsageError, "r_h_pbr");
}

}  // namespace oscar
