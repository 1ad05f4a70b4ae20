// SPDX-License-Identifier: MIT
// Parity with the published fitter on a real dump: the files that it made of it by the recipes that we have.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/files.hpp"
#include "dump/source.hpp"
#include "method/compose.hpp"
#include "set/formats.hpp"
#include "support/backend.hpp"
#include "support/fit_source.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

/// Flips the columns of `actual` to the signs of `expected` and returns the largest difference.
double distance_up_to_signs(const Matrix& actual, const Matrix& expected, std::size_t d) {
  double worst = 0;
  for (std::size_t j = 0; j < d; ++j) {
    double dot = 0;
    for (std::size_t i = 0; i < d; ++i) dot += actual[i * d + j] * expected[i * d + j];
    for (std::size_t i = 0; i < d; ++i) {
      worst = std::max(worst, std::abs((dot < 0 ? -1 : 1) * actual[i * d + j] - expected[i * d + j]));
    }
  }
  return worst;
}

/// U of a rotation U H P, or of U: signs of its columns are arbitrary in published files.
Matrix eigenvectors(const MatrixStack& rotation, Composition composition) {
  const Spectrum identity{rotation.dim, {}, MatrixStack::identity(rotation.dim).data};
  return multiply(rotation[0], transposed(compose({identity}, composition)[0], rotation.dim), rotation.dim);
}

void check_side(const SideTransform& actual, const SideTransform& expected, Composition composition) {
  const auto d = static_cast<std::size_t>(expected.rotation.dim);
  REQUIRE(actual.rotation.data.size() == expected.rotation.data.size());
  for (std::size_t i = 0; i < d; ++i) {
    CHECK(std::abs(actual.eigenvalues[i] - expected.eigenvalues[i]) <= 1e-6 * std::abs(expected.eigenvalues[i]));
  }
  CHECK(distance_up_to_signs(eigenvectors(actual.rotation, composition), eigenvectors(expected.rotation, composition),
                             d) < 1e-5);
}

struct Parity {
  FitOptions options;
  std::string keys, values;  // names of the published files
};

void check_fit(const fs::path& reference, const Parity& parity) {
  CAPTURE(reference);
  CAPTURE(parity.keys);
  Status status;
  const auto backend = test::make_test_backend();
  const auto source = open_dump(reference / "dump", {}, status);
  FitOptions options = parity.options;
  options.clip = "off";
  const RotationPart set = test::fit_rotations_of(*source, options, *backend, status);
  const RotationFile keys = read_rotation_pt(reference / "expected" / ("k_rotation_" + parity.keys + ".pt"));
  const RotationFile values = read_rotation_pt(reference / "expected" / ("v_rotation_" + parity.values + ".pt"));
  CHECK(set.key_objective == keys.objective);
  CHECK(set.value_objective == values.objective);
  REQUIRE(set.layers.size() == keys.layers.size());
  const Composition composition = composition_from_name(options.composition);
  for (std::size_t i = 0; i < set.layers.size(); ++i) {
    CHECK(set.layers[i].layer_id == keys.layers[i].first);
    if (options.recipe == "hadamard") {
      CHECK(set.layers[i].key.rotation.data == keys.layers[i].second.rotation.data);
      CHECK(set.layers[i].value.rotation.data == values.layers[i].second.rotation.data);
    }
    check_side(set.layers[i].key, keys.layers[i].second, composition);
    check_side(set.layers[i].value, values.layers[i].second, composition);
  }
}

}  // namespace

TEST_CASE("fits equal the published fitter's") {
  const std::vector<Parity> all{{{.recipe = "oscar"}, "qqt_r_h_pbr", "sst_r_h_pbr"},
                                {{.recipe = "oscar", .composition = "plain"}, "qqt_plain", "sst_plain"},
                                {{.recipe = "hadamard"}, "hadamard", "hadamard"}};
  for (const Parity& parity : all) {
    for (const fs::path& reference : test::published_fits()) check_fit(reference, parity);
  }
}

}  // namespace oscar
