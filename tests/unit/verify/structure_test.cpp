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
#include "verify/structure/objective.hpp"
#include "verify/structure/subject.hpp"

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

RotationPart sound_set(const std::string& composition = "r_h_pbr") {
  RotationPart part;
  part.has_clip_ratios = true;
  part.model.config_sha256 = "abc";
  part.calibration.tokens = 1000;
  part.key_objective = "qqt_" + composition, part.value_objective = "sst_" + composition;
  for (int layer = 0; layer < 2; ++layer) {
    const auto seed = static_cast<unsigned>(layer);
    part.layers.push_back({layer, fitted(10 + seed, composition), fitted(20 + seed, composition)});
  }
  return part;
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

std::vector<Check> all_checks(const RotationPart& part, const verify::Expectation& expected = expected_model()) {
  verify::SetUnderTest set{.model = part.model, .calibration = part.calibration};
  set.parts.push_back(verify::make_subject(kRotationsName, part));
  std::vector<Check> checks;
  verify::check_provenance(set, expected, checks);
  verify::check_shared(*set.parts[0], expected, checks);
  set.parts[0]->check_own(checks);
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

std::string failures(const RotationPart& part, const verify::Expectation& expected = expected_model()) {
  return with_status(all_checks(part, expected), false);
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

SideTransform& key(RotationPart& part, std::size_t layer = 0) { return part.layers[layer].key; }
SideTransform& value(RotationPart& part, std::size_t layer = 0) { return part.layers[layer].value; }

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
  RotationPart set = sound_set();
  value(set).rotation.data[5] += 0.001;
  check_contains(failures(set), "orthogonality: ");
  CHECK(failures(set).find("orthogonality_bf16") == std::string::npos);
  value(set).rotation.data[5] += 0.05;
  check_contains(failures(set), "orthogonality_bf16: after the cast");

  set = sound_set();
  set.layers.pop_back();
  check_contains(failures(set), "layer_coverage: nothing for layers 1 of config.json");

  verify::Expectation deeper = expected_model();
  deeper.model.num_layers = 4;
  check_contains(failures(sound_set(), deeper), "nothing for layers 2, 3 of config.json");
  deeper.model.num_layers = 1;
  check_contains(failures(sound_set(), deeper), "layer 1 does not exist");

  verify::Expectation wider = expected_model();
  wider.model.head_dim = 128;
  check_contains(failures(sound_set(), wider), "shape: the model's head_dim is 128");
  wider.dims = {{0, {kHeadDim, kHeadDim}}, {1, {kHeadDim, 32}}};  // which the layers say better
  CHECK(failures(sound_set(), wider) == "shape: the model's head_dim is 32\n");
  wider.dims.clear(), wider.model.head_dim = kHeadDim, wider.model.value_dim = 8;
  CHECK(failures(sound_set(), wider) == "shape: the model's head_dim is 8\nshape: the model's head_dim is 8\n");

  verify::Expectation of_two = expected_model();
  of_two.model.num_key_value_heads = 2;
  for (const double ratio : {1.5, -0.1, std::nan("")}) {
    set = sound_set();
    key(set).clip_ratio = ratio, value(set).head_clip_ratios = {0.9, ratio};
    CHECK(failures(set, of_two) == "clip_ratio: a clip ratio lies in 0..1\nclip_ratio: a clip ratio lies in 0..1\n");
  }
  const std::string shape = "shape: matrices, means or clip ratios are not of the model's 2 key-value heads\n";
  for (const std::vector<double>& ratios : {std::vector{0.9}, std::vector{0.9, 0.8, 0.7}}) {
    set = sound_set();
    key(set).head_clip_ratios = ratios, value(set).mean.resize(3 * kHeadDim);
    CHECK(failures(set, of_two) == shape + shape);
  }
}

TEST_CASE("another commit of the model, or other weights, are said, and decide nothing") {
  RotationPart set = sound_set();
  set.model.revision = "1111";
  CHECK(with_status(all_checks(set), std::nullopt) == "");
  verify::Expectation moved = expected_model();
  moved.model.revision = "1111";
  CHECK(with_status(all_checks(set, moved), std::nullopt) == "");
  moved.model.revision = "2222";
  check_contains(with_status(all_checks(set, moved), std::nullopt),
                 "model_revision: fitted on commit 1111 of the model, which is now 2222");
  set.model.weights_sha256 = "a", moved.model.weights_sha256 = "b";
  check_contains(with_status(all_checks(set, moved), std::nullopt), "model_weights: fitted on other weights of this");
  CHECK(failures(set, moved) == "");
}

TEST_CASE("degenerate spectra are found") {
  RotationPart set = sound_set();
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
  RotationPart set = sound_set();
  set.has_clip_ratios = false;
  set.model = {};
  for (LayerRotation& layer : set.layers) layer.key.covariance = layer.value.covariance = {};
  const std::vector<Check> checks = all_checks(set, {});
  CHECK(with_status(checks, false) == "");
  const std::string unknown = with_status(checks, std::nullopt);
  for (const char* name : {"layer_coverage", "shape", "model_identity", "clip_ratio", "decomposition"}) {
    check_contains(unknown, std::string(name) + ": ");
    for (const Check& check : checks) CHECK((check.name != name || !check.ok.has_value()));
  }
}

TEST_CASE("data decides what a foreign file leaves open: same tokens exactly, other text roughly") {
  RotationPart set = sound_set();
  std::vector<verify::DataCovariance> data;
  for (LayerRotation& layer : set.layers) {
    data.push_back({layer.layer_id, Moment::kQqt, layer.key.covariance, true, 1000});
    data.push_back({layer.layer_id, Moment::kSst, layer.value.covariance, true, 1000});
    layer.key.covariance = layer.value.covariance = {};
  }
  const auto on_data = [&] {
    std::vector<Check> checks;
    verify::check_decomposition_on_data(verify::sides_of(set), data, checks);
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
    RotationPart set = sound_set(composition);
    CHECK(failures(set) == "");
    transpose(key(set).rotation);
    key(set).rotation.data[1] += 0.5;
    check_contains(failures(set), "composition: this is not \"" + composition + "\"");
  }
  RotationPart set = sound_set();
  set.key_objective = set.value_objective = "hadamard";
  for (LayerRotation& layer : set.layers) {
    for (SideTransform* side : {&layer.key, &layer.value}) {
      side->rotation = hadamard_rotation(kHeadDim);
      side->eigenvalues.assign(kHeadDim, 1.0);
    }
  }
  CHECK(failures(set) == "");
  std::swap(key(set).rotation.data[0], key(set).rotation.data[18]);
  key(set).rotation.data[0] = -key(set).rotation.data[0];
  check_contains(failures(set), "composition: this is not \"hadamard\"");
}

TEST_CASE("a mixture may hold layers that no data went into") {
  RotationPart set = sound_set();
  set.key_objective = set.value_objective = "mixed_r_h_pbr";
  for (SideTransform* side : {&key(set, 1), &value(set, 1)}) {
    side->rotation = hadamard_rotation(kHeadDim);
    side->eigenvalues.assign(kHeadDim, 1.0);
    side->covariance = {};
  }
  CHECK(failures(set) == "");
  key(set, 1).rotation = key(set).rotation;
  check_contains(failures(set), "composition: this is not \"hadamard\"");
}

TEST_CASE("eigenvectors come out of compositions of every head dimension") {
  const std::vector<double> identity = MatrixStack::identity(12).data;
  CHECK_FALSE(verify::eigenvectors_of(identity, 12, "best").has_value());
  CHECK(verify::eigenvectors_of(identity, 12, "plain") == identity);
  CHECK_FALSE(verify::eigenvectors_of(MatrixStack::identity(16).data, 16, "br_h128").has_value());
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
  RotationPart set = sound_set();
  set.calibration.tokens = 2 * kHeadDim - 1;
  check_contains(failures(set), "calibration_tokens: fitted on too few tokens");
  CHECK(failures(sound_set("h_pbr")) == "");
  set = sound_set("h_pbr");
  set.calibration.tokens = 1;
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

TEST_CASE("the published files of a real model pass, with what they cannot tell said") {
  const auto fixtures = test::shared_data("fixtures/rotations");
  if (!fixtures) return;
  for (const char* name : {"Qwen3-8B", "Qwen3-4B-Thinking-2507", "Qwen3.5-4B", "Qwen3.5-4B-hadamard"}) {
    CAPTURE(name);
    const test::Verified v = test::verified(*fixtures / name);
    CHECK_MESSAGE(v.report.verdict == Verdict::kNotMeasured, v.reasons);
    check_contains(v.warnings, "layer_coverage is unknown");
  }
}

}  // namespace oscar
