// SPDX-License-Identifier: MIT
// Parity with the published fitter on a real dump: every file that it made of it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/files.hpp"
#include "dump/folder_source.hpp"
#include "fit/fit.hpp"
#include "method/bases.hpp"
#include "rotation/formats.hpp"
#include "support/backend.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

using DenseMatrix = std::vector<double>;

DenseMatrix dense_product(const DenseMatrix& a, const DenseMatrix& b, std::size_t d) {
  DenseMatrix out(d * d);
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t k = 0; k < d; ++k) {
      for (std::size_t j = 0; j < d; ++j) out[i * d + j] += a[i * d + k] * b[k * d + j];
    }
  }
  return out;
}

DenseMatrix transpose(const DenseMatrix& a, std::size_t d) {
  DenseMatrix out(d * d);
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t j = 0; j < d; ++j) out[j * d + i] = a[i * d + j];
  }
  return out;
}

/// The factors to the left and to the right of U in a composition: rotation = left U right.
std::pair<DenseMatrix, DenseMatrix> factors(const std::string& composition, std::size_t d) {
  const DenseMatrix identity = MatrixStack::identity(static_cast<int>(d)).data, h = hadamard(static_cast<int>(d));
  DenseMatrix p(d * d);
  const std::vector<int> perm = deal_permutation(static_cast<int>(d));
  for (std::size_t j = 0; j < d; ++j) p[static_cast<std::size_t>(perm[j]) * d + j] = 1;
  if (composition == "br") return {identity, p};
  if (composition == "br_h128") return {identity, dense_product(p, h, d)};
  if (composition == "r_h") return {identity, h};
  if (composition == "h_r_pbr") return {h, p};
  if (composition == "h_pbr_r") return {dense_product(h, p, d), identity};
  if (composition == "r_h_pbr") return {identity, dense_product(h, p, d)};
  return {identity, identity};  // plain
}

/// Flips the columns of `actual` to the signs of `expected` and returns the largest difference.
double distance_up_to_signs(DenseMatrix actual, const DenseMatrix& expected, std::size_t d) {
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

double distance(const DenseMatrix& a, const DenseMatrix& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

/// Eigenvector matrices hidden in two rotations of the same composition.
DenseMatrix eigenvectors(const DenseMatrix& rotation, const std::string& composition, std::size_t d) {
  const auto [left, right] = factors(composition, d);
  return dense_product(dense_product(transpose(left, d), rotation, d), transpose(right, d), d);
}

void check_side(const SideTransform& actual, const SideTransform& expected, const std::string& composition) {
  const auto d = static_cast<std::size_t>(expected.rotation.dim);
  REQUIRE(actual.rotation.data.size() == expected.rotation.data.size());
  for (std::size_t i = 0; i < d; ++i) {
    CHECK(std::abs(actual.eigenvalues[i] - expected.eigenvalues[i]) <= 1e-6 * std::abs(expected.eigenvalues[i]));
  }
  if (composition == "pbr" || composition == "h_pbr") {  // no eigenvectors inside
    CHECK(distance(actual.rotation.data, expected.rotation.data) < 1e-6);
    return;
  }
  CHECK(distance_up_to_signs(eigenvectors(actual.rotation.data, composition, d),
                             eigenvectors(expected.rotation.data, composition, d), d) < 1e-5);
}

void check_one_fit(const fs::path& reference, const FitOptions& options, const std::string& suffix_k,
                   const std::string& suffix_v, const std::string& composition) {
  CAPTURE(suffix_k);
  CAPTURE(reference);
  Status status;
  const auto backend = test::make_test_backend();
  const auto source = open_dump(reference / "dump", {}, status);

  const RotationSet set = fit(*source, options, *backend, status).set;

  const RotationFile keys = read_rotation_pt(reference / "expected" / ("k_rotation_" + suffix_k + ".pt"));
  const RotationFile values = read_rotation_pt(reference / "expected" / ("v_rotation_" + suffix_v + ".pt"));
  CHECK(set.key_objective == keys.objective);
  CHECK(set.value_objective == values.objective);
  REQUIRE(set.layers.size() == keys.layers.size());
  for (std::size_t i = 0; i < set.layers.size(); ++i) {
    CHECK(set.layers[i].layer_id == keys.layers[i].first);
    check_side(set.layers[i].key, keys.layers[i].second, composition);
    check_side(set.layers[i].value, values.layers[i].second, composition);
  }
}

void check_fit(const FitOptions& options, const std::string& suffix_k, const std::string& suffix_v,
               const std::string& composition) {
  for (const fs::path& reference : test::published_fits()) {
    check_one_fit(reference, options, suffix_k, suffix_v, composition);
  }
}

/// R = U_E Pi U_C^T: the sign of each pair of columns is arbitrary, so the sum over pairs is not comparable element by
/// element. R U_C Pi^T = U_E is, up to the signs of its columns; U_C is taken from the same data's plain fit.
void check_uresidual(const fs::path& reference) {
  const test::TemporaryFolder folder;
  for (const char* name : {"k_rotation_qqt_r_h_pbr.pt", "v_rotation_sst_r_h_pbr.pt"}) {
    fs::copy(reference / "expected" / name, folder / name);
  }
  FitOptions options;
  options.recipe = "uresidual";
  options.reference_rotation = folder.path();
  options.clip = "off";
  Status status;
  const auto backend = test::make_test_backend();
  const auto source = open_dump(reference / "dump", {}, status);
  const RotationSet set = fit(*source, options, *backend, status).set;
  options.recipe = "oscar";
  options.composition = "plain";
  const RotationSet plain = fit(*source, options, *backend, status).set;
  for (const auto side : {&LayerRotation::key, &LayerRotation::value}) {
    const RotationFile file = read_rotation_pt(
        reference / "expected" / (side == &LayerRotation::key ? "k_rotation_uresidual.pt" : "v_rotation_uresidual.pt"));
    for (std::size_t i = 0; i < set.layers.size(); ++i) {
      const auto d = static_cast<std::size_t>((set.layers[i].*side).rotation.dim);
      const DenseMatrix& basis = (plain.layers[i].*side).rotation.data;
      const DenseMatrix actual = dense_product((set.layers[i].*side).rotation.data, basis, d);
      const DenseMatrix expected = dense_product(file.layers[i].second.rotation.data, basis, d);
      CHECK(distance_up_to_signs(actual, expected, d) < 1e-5);
      for (std::size_t j = 0; j < d; ++j) {
        const double value = file.layers[i].second.eigenvalues[j];
        CHECK(std::abs((set.layers[i].*side).eigenvalues[j] - value) <= 1e-6 * std::abs(value));
      }
    }
  }
}

}  // namespace

TEST_CASE("all nine compositions equal the published fitter's") {
  for (const char* composition : {"plain", "pbr", "br", "br_h128", "r_h", "h_pbr", "h_r_pbr", "h_pbr_r", "r_h_pbr"}) {
    FitOptions options;
    options.composition = composition;
    options.clip = "off";
    check_fit(options, std::string("qqt_") + composition, std::string("sst_") + composition, composition);
  }
}

TEST_CASE("plain key and value moments equal the published fitter's") {
  FitOptions options;
  options.recipe = "ktk_vtv";
  options.clip = "off";
  check_fit(options, "ktk_r_h_pbr", "vtv_r_h_pbr", "r_h_pbr");
}

TEST_CASE("hadamard equals the published file exactly") {
  FitOptions options;
  options.recipe = "hadamard";
  options.clip = "off";
  check_fit(options, "hadamard", "hadamard", "pbr");
}

TEST_CASE("uresidual, started from the published rotations, equals the published fitter's") {
  for (const fs::path& reference : test::published_fits()) check_uresidual(reference);
}

}  // namespace oscar
