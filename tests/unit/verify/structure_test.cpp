// SPDX-License-Identifier: MIT
// Every structure check on a sound set, and on the set with one planted defect of the kind that it is there for.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "method/compose.hpp"
#include "set/names.hpp"
#include "support/backend.hpp"
#include "support/published_compositions.hpp"
#include "support/support.hpp"
#include "tensor/pt.hpp"
#include "unit/verify/sample.hpp"
#include "verify/structure/checks.hpp"
#include "verify/structure/objective.hpp"

namespace oscar {
namespace {

using test::check_contains;

constexpr int kHeadDim = 16;

/// A D A^T with random A: no two seeds share directions.
MatrixStack random_covariance(unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<double> a(kHeadDim * kHeadDim);
  for (double& x : a) x = normal(engine);
  MatrixStack covariance(1, kHeadDim);
  for (std::size_t i = 0; i < kHeadDim; ++i) {
    for (std::size_t j = 0; j < kHeadDim; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < kHeadDim; ++k)
        sum += a[i * kHeadDim + k] * a[j * kHeadDim + k] * std::exp(0.3 * static_cast<double>(k));
      covariance.data[i * kHeadDim + j] = static_cast<float>(sum);
    }
  }
  return covariance;
}

SideTransform fitted(unsigned seed, const std::string& composition) {
  const auto backend = test::make_test_backend();
  SideTransform side;
  side.covariance = random_covariance(seed);
  const auto spectra = decompose(side.covariance, *backend);
  side.rotation = test::compose_as_published(spectra.front(), composition);
  for (double& x : side.rotation.data) x = static_cast<float>(x);
  side.eigenvalues = spectra[0].values;
  side.clip_ratio = 0.9;
  return side;
}

RotationSubject sound_set(const std::string& composition = "r_h_pbr") {
  RotationSubject subject;
  subject.ours = true;
  subject.set.has_clip_ratios = true;
  subject.set.model.config_sha256 = "abc";
  subject.set.calibration.tokens = 1000;
  const std::string suffix = "_" + composition;
  subject.sides = {{"key", "qqt" + suffix, {}}, {"value", "sst" + suffix, {}}};
  for (int layer = 0; layer < 2; ++layer) {
    subject.sides[0].layers.emplace_back(layer, fitted(10 + static_cast<unsigned>(layer), composition));
    subject.sides[1].layers.emplace_back(layer, fitted(20 + static_cast<unsigned>(layer), composition));
  }
  return subject;
}

verify::Expectation expected_model() {
  verify::Expectation expected;
  expected.model.config_sha256 = "abc";
  expected.model.num_layers = 2;
  expected.model.num_key_value_heads = 1;
  expected.model.head_dim = kHeadDim;
  expected.origin = "config.json";
  return expected;
}

std::vector<Check> all_checks(const RotationSubject& subject, const verify::Expectation& expected = expected_model()) {
  std::vector<Check> checks;
  verify::check_finite(subject, checks);
  verify::check_coverage(subject, expected, checks);
  verify::check_provenance(subject, expected, checks);
  verify::check_fp8(subject, checks);
  verify::check_orthogonality(subject, checks);
  verify::check_spectrum(subject, checks);
  verify::check_decomposition(subject, checks);
  return checks;
}

/// "name: message" of every check that failed, or is unknown.
std::string with_status(const std::vector<Check>& checks, std::optional<bool> status) {
  std::string text;
  for (const Check& check : checks) {
    if (check.ok == status) text += check.name + ": " + check.message + "\n";
  }
  return text;
}

std::string failures(const RotationSubject& subject, const verify::Expectation& expected = expected_model()) {
  return with_status(all_checks(subject, expected), false);
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

SideTransform& key(RotationSubject& subject, std::size_t layer = 0) { return subject.sides[0].layers[layer].second; }
SideTransform& value(RotationSubject& subject, std::size_t layer = 0) { return subject.sides[1].layers[layer].second; }

void transpose(MatrixStack& m) {
  for (std::size_t i = 0; i < kHeadDim; ++i) {
    for (std::size_t j = 0; j < i; ++j) std::swap(m.data[i * kHeadDim + j], m.data[j * kHeadDim + i]);
  }
}

}  // namespace

TEST_CASE("a sound set passes every check, none unknown") {
  const std::vector<Check> checks = all_checks(sound_set());
  CHECK(with_status(checks, false) == "");
  CHECK(with_status(checks, std::nullopt) == "");
  for (const char* name : {"finite", "layer_coverage", "shape", "orthogonality", "spectrum", "decomposition"}) {
    CHECK_MESSAGE(std::ranges::count(checks, name, &Check::name) > 0, name);
  }
}

TEST_CASE("non-orthogonal matrices and wrong numbers of things are found") {
  RotationSubject set = sound_set();
  value(set).rotation.data[5] += 0.001;
  check_contains(failures(set), "orthogonality: ");
  CHECK(failures(set).find("orthogonality_bf16") == std::string::npos);
  value(set).rotation.data[5] += 0.05;
  check_contains(failures(set), "orthogonality_bf16: after the cast");

  set = sound_set();
  set.sides[1].layers.pop_back();
  check_contains(failures(set), "sides_agree: ");
  check_contains(failures(set), "layer_coverage: no rotation for layers 1");

  verify::Expectation deeper = expected_model();
  deeper.model.num_layers = 4;
  check_contains(failures(sound_set(), deeper), "no rotation for layers 2, 3 of config.json");
  deeper.model.num_layers = 1;
  check_contains(failures(sound_set(), deeper), "layer 1 does not exist");

  verify::Expectation wider = expected_model();
  wider.model.head_dim = 128;
  check_contains(failures(sound_set(), wider), "shape: the model's head_dim is 128");

  set = sound_set();
  key(set).eigenvalues.pop_back();
  check_contains(failures(set), "shape: the number of eigenvalues");
  set = sound_set();
  key(set).clip_ratio = 1.5;
  check_contains(failures(set), "clip_ratio: a clip ratio lies in 0..1");
  set = sound_set();
  key(set).head_clip_ratios = {0.9, -0.1};
  check_contains(failures(set), "clip_ratio: a clip ratio lies in 0..1");
  set = sound_set();
  set.set.model.num_key_value_heads = 4;
  key(set).head_clip_ratios = {0.9, 0.8};
  check_contains(failures(set), "clip_ratio: the number of clip ratios is not that of the heads");
}

TEST_CASE("another commit of the model is said, and decides nothing") {
  RotationSubject set = sound_set();
  set.set.model.revision = "1111";
  CHECK(with_status(all_checks(set), std::nullopt) == "");
  verify::Expectation moved = expected_model();
  moved.model.revision = "1111";
  CHECK(with_status(all_checks(set, moved), std::nullopt) == "");
  moved.model.revision = "2222";
  check_contains(with_status(all_checks(set, moved), std::nullopt),
                 "model_revision: fitted on commit 1111 of the model, which is now 2222");
  CHECK(failures(set, moved) == "");
}

TEST_CASE("degenerate spectra are found") {
  RotationSubject set = sound_set();
  std::swap(key(set).eigenvalues[0], key(set).eigenvalues[3]);
  check_contains(failures(set), "spectrum: eigenvalues are not ascending");
  set = sound_set();
  key(set).eigenvalues[0] = -1;
  check_contains(failures(set), "spectrum: a covariance cannot have negative");
  set = sound_set();
  std::fill(value(set).eigenvalues.begin(), value(set).eigenvalues.end(), 2.0);
  check_contains(failures(set), "spectrum: all eigenvalues are equal");
  std::fill(value(set).eigenvalues.begin(), value(set).eigenvalues.end(), 0.0);
  check_contains(failures(set), "spectrum: no eigenvalue is positive");
  set = sound_set();
  std::fill_n(key(set).eigenvalues.begin(), 9, 0.0);
  check_contains(failures(set), "spectrum_rank: most directions had no data");
  set = sound_set();
  for (double& x : key(set).eigenvalues) x *= 1.01;
  check_contains(failures(set), "decomposition: the eigenvalues are not those of the covariance");
}

TEST_CASE("what a bare foreign file cannot tell is unknown, and never ok") {
  RotationSubject set = sound_set();
  set.ours = false;
  set.set.has_clip_ratios = false;
  set.set.model = {};
  for (SubjectSide& side : set.sides) {
    for (auto& [id, transform] : side.layers) transform.covariance = {};
  }
  const std::vector<Check> checks = all_checks(set, {});
  CHECK(with_status(checks, false) == "");
  const std::string unknown = with_status(checks, std::nullopt);
  for (const char* name : {"layer_coverage", "shape", "model_identity", "clip_ratio", "decomposition"}) {
    check_contains(unknown, std::string(name) + ": ");
    for (const Check& check : checks) CHECK((check.name != name || !check.ok.has_value()));
  }
}

TEST_CASE("data decides what a foreign file leaves open: same tokens exactly, other text roughly") {
  RotationSubject set = sound_set();
  std::vector<verify::DataCovariance> data;
  for (SubjectSide& side : set.sides) {
    for (auto& [id, transform] : side.layers) {
      data.push_back({id, side.target, transform.covariance, true, 1000});
      transform.covariance = {};
    }
  }
  const auto on_data = [&] {
    std::vector<Check> checks;
    verify::check_decomposition_on_data(set, data, checks);
    CHECK(checks.size() == 4);
    return with_status(checks, false);
  };
  CHECK(on_data() == "");
  for (double& x : data[0].covariance.data) x *= 1.1;
  check_contains(on_data(), "the eigenvalues are not those of the covariance");
  for (auto& d : data) d.same_tokens = false;
  CHECK(on_data() == "");
  std::swap(key(set).rotation, value(set).rotation);
  check_contains(on_data(), "keys and values are swapped");
  for (auto& d : data) d.tokens = 60;
  CHECK(on_data() == "");  // too few to fail a set on
}

TEST_CASE("rotations made without data are held against their constant") {
  for (const std::string composition : {"pbr", "h_pbr"}) {
    RotationSubject set = sound_set(composition);
    CHECK(failures(set) == "");
    transpose(key(set).rotation);
    key(set).rotation.data[1] += 0.5;
    check_contains(failures(set), "composition: this is not \"" + composition + "\"");
  }
  RotationSubject set = sound_set();
  for (SubjectSide& side : set.sides) {
    side.objective = "hadamard";
    for (auto& [id, transform] : side.layers) {
      transform.rotation = hadamard_rotation(kHeadDim);
      transform.eigenvalues.assign(kHeadDim, 1.0);
    }
  }
  CHECK(failures(set) == "");
  std::swap(key(set).rotation.data[0], key(set).rotation.data[18]);
  key(set).rotation.data[0] = -key(set).rotation.data[0];
  check_contains(failures(set), "composition: this is not \"hadamard\"");
}

TEST_CASE("a mixture may hold layers that no data went into") {
  RotationSubject set = sound_set();
  for (SubjectSide& side : set.sides) {
    side.objective = "mixed_r_h_pbr";
    side.layers[1].second.rotation = hadamard_rotation(kHeadDim);
    side.layers[1].second.eigenvalues.assign(kHeadDim, 1.0);
    side.layers[1].second.covariance = {};
  }
  CHECK(failures(set) == "");
  key(set, 1).rotation = set.sides[0].layers[0].second.rotation;
  check_contains(failures(set), "composition: this is not \"hadamard\"");
}

TEST_CASE("eigenvectors come out of every composition that holds them") {
  for (const std::string composition : {"plain", "br", "r_h", "h_r_pbr", "h_pbr_r", "r_h_pbr"}) {
    CAPTURE(composition);
    CHECK(failures(sound_set(composition)) == "");
  }
  const std::vector<double> identity = MatrixStack::identity(12).data;
  CHECK_FALSE(verify::eigenvectors_of(identity, 12, "best").has_value());
  CHECK(verify::eigenvectors_of(identity, 12, "plain") == identity);
  CHECK_FALSE(verify::eigenvectors_of(MatrixStack::identity(16).data, 16, "br_h128").has_value());
}

TEST_CASE("eigenvectors come out of compositions of every head dimension") {
  for (const int dim : {12, 24, 40, 56, 6, 80, 96}) {
    Spectrum spectrum;
    spectrum.dim = dim;
    spectrum.vectors.resize(static_cast<std::size_t>(dim) * dim);
    for (std::size_t i = 0; i < spectrum.vectors.size(); ++i)
      spectrum.vectors[i] = std::sin(1.0 + static_cast<double>(i * i));
    for (const std::string& name : composition_names()) {
      if (name == "br_h128" || verify::is_constant(name)) continue;
      CAPTURE(dim);
      CAPTURE(name);
      const MatrixStack rotation = test::compose_as_published(spectrum, name);
      const auto found = verify::eigenvectors_of(rotation.data, static_cast<std::size_t>(dim), name);
      REQUIRE(found.has_value());
      CHECK(largest_difference(*found, spectrum.vectors) < 1e-6);
    }
    CHECK(largest_difference(*verify::constant_rotation("hadamard", static_cast<std::size_t>(dim)),
                             hadamard_rotation(dim).data) < 1e-7);
    const std::vector<double> dealt = *verify::constant_rotation("h_pbr", static_cast<std::size_t>(dim));
    for (std::size_t i = 0; i < static_cast<std::size_t>(dim); ++i) {
      for (std::size_t j = 0; j < static_cast<std::size_t>(dim); ++j) {
        double product = 0;
        for (std::size_t k = 0; k < static_cast<std::size_t>(dim); ++k) {
          product += dealt[k * static_cast<std::size_t>(dim) + i] * dealt[k * static_cast<std::size_t>(dim) + j];
        }
        CHECK(std::abs(product - (i == j ? 1 : 0)) < 1e-12);
      }
    }
  }
}

TEST_CASE("few tokens are too few for rotations that data went into") {
  RotationSubject set = sound_set();
  set.set.calibration.tokens = 2 * kHeadDim - 1;
  check_contains(failures(set), "calibration_tokens: fitted on too few tokens");
  CHECK(failures(sound_set("h_pbr")) == "");
  set = sound_set("h_pbr");
  set.set.calibration.tokens = 1;
  CHECK(failures(set) == "");
  CHECK(with_status(all_checks(set), std::nullopt) == "");
}

TEST_CASE("the published fitter's compositions all hold the eigenvectors of its plain file") {
  const fs::path expected = test::data("reference-fit/expected");
  const auto rotation_of = [&](const std::string& composition) {
    const PtValue file = read_pt(expected / ("k_rotation_qqt_" + composition + ".pt"));
    return MatrixStack::from(*file.find("layers")->find(2)->find("rotation")->get_if<Tensor>(), composition).data;
  };
  for (const std::string& composition : composition_names()) {
    CAPTURE(composition);
    const std::vector<double> rotation = rotation_of(composition);
    std::vector<double> wanted = rotation_of("plain");
    std::vector<double> found;
    if (verify::is_constant(composition)) {
      wanted = *verify::constant_rotation(composition, 128);
      found = rotation;
    } else {
      found = *verify::eigenvectors_of(rotation, 128, composition);
    }
    CHECK(largest_difference(wanted, found) < 1e-5);
  }
}

}  // namespace oscar
