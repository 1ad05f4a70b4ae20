// SPDX-License-Identifier: MIT
// What goes wrong with sets in the field, planted one at a time into sound ones: each is rejected, and named.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "unit/verify/sample.hpp"

namespace oscar {
namespace {

using namespace test;

struct Defect {
  std::string name;
  std::function<void(RotationPart&)> plant;
  const char* reason;
};

void scale(MatrixStack& stack, double factor) {
  for (double& x : stack.data) x *= factor;
}

/// To four bits of mantissa, as fp8 (e4m3) holds numbers from 2^-6 on; below that multiples of 2^-9, or zero.
void to_fp8(MatrixStack& stack, bool round, bool flush) {
  for (double& x : stack.data) {
    const bool normal = std::abs(x) >= 0x1p-6;
    if (!normal && flush) x = 0;
    const double unit = normal ? std::exp2(std::floor(std::log2(std::abs(x))) - 3) : 0x1p-9;
    if (round) x = std::nearbyint(x / unit) * unit;
  }
}

SideTransform& key(RotationPart& set, std::size_t layer = 1) { return set.layers[layer].key; }

const std::vector<Defect>& defects() {
  static const std::vector<Defect> all{
      {"swapped sides", [](RotationPart& s) { std::swap(key(s).rotation, s.layers[1].value.rotation); },
       "it is the matrix of the other side: keys and values are swapped"},
      {"swapped labels", [](RotationPart& s) { std::swap(s.key_objective, s.value_objective); },
       "objective_side failed (key): \"sst_r_h_pbr\" is fitted for the other side"},
      {"transposed", [](RotationPart& s) { key(s).rotation = key(s).rotation.transposed(); },
       "the matrix is transposed"},
      {"another composition", [](RotationPart& s) { s.key_objective = "qqt_r_h"; },
       "it is composed as \"r_h_pbr\", not as \"r_h\""},
      {"another group", [](RotationPart& s) { s.recipe["group_size"] = s.key_codec.group_size = 48; },
       "group_size failed (layer 0): groups of 48 channels do not divide head_dim"},
      {"exchanged layers", [](RotationPart& s) { std::swap(key(s, 1).rotation, key(s, 2).rotation); },
       "it is the matrix of layer 2"},
      {"NaN", [](RotationPart& s) { key(s).rotation.data[3] = std::numeric_limits<double>::quiet_NaN(); },
       "finite failed (layer 1, key)"},
      {"not orthogonal", [](RotationPart& s) { key(s).rotation.data[3] += 0.001; },
       "orthogonality failed (layer 1, key)"},
      {"not orthogonal in bf16", [](RotationPart& s) { key(s).rotation.data[3] += 0.1; },
       "orthogonality_bf16 failed (layer 1, key)"},
      {"wrong layer ids", [](RotationPart& s) { s.layers.back().layer_id = 7; },
       "derived_files failed: 1 against 0: manifest.json: rotations, layer 7: the model has 4 layers"},
      {"another model", [](RotationPart& s) { s.model.config_sha256 = std::string(64, 'a'); },
       "model_identity failed: fitted on another model"},
      {"twelve tokens", [](RotationPart& s) { s.calibration.tokens = 12; },
       "calibration_tokens failed: 12 against 256: fitted on too few tokens"},
      {"no tokens", [](RotationPart& s) { s.calibration.tokens = 0; },
       "calibration_tokens failed: 0 against 256: the set does not say how many tokens it was fitted on"},
      {"fp8", [](RotationPart& s) { to_fp8(key(s).rotation, true, false); },
       "fp8_subnormals failed (layer 1, key): every entry is a number of fp8"},
      {"means of three heads", [](RotationPart& s) { key(s).mean.resize(3 * 128); },
       "shape failed (layer 1, key): 128 against 128: matrices, means or clip ratios are not of the model's"},
      {"flushed fp8 subnormals", [](RotationPart& s) { to_fp8(key(s).rotation, false, true); },
       "fp8_subnormals failed (layer 1, key): entries below 2^-6"}};
  return all;
}

const std::vector<Defect>& stretch_defects() {
  static const std::vector<Defect> all{
      {"transposed",
       [](RotationPart& s) {
         key(s).rotation = key(s).rotation.transposed();
         key(s).read_rotation = key(s).read_rotation.transposed();
       },
       "stretch_metric failed (layer 1, key)"},
      {"exchanged pair", [](RotationPart& s) { std::swap(key(s).rotation, key(s).read_rotation); },
       "the matrices of keys and queries are exchanged"},
      {"exchanged layers",
       [](RotationPart& s) {
         std::swap(key(s, 1).rotation, key(s, 2).rotation);
         std::swap(key(s, 1).read_rotation, key(s, 2).read_rotation);
       },
       "it is the stretch of layer 2"},
      {"another metric", [](RotationPart& s) { scale(key(s).rotation, 1.01), scale(key(s).read_rotation, 1 / 1.01); },
       "it does not belong to this layer, model or data"},
      {"another composition", [](RotationPart& s) { s.key_objective = "stretch_qqt_r_h"; },
       "it is composed as \"r_h_pbr\", not as \"r_h\""},
      {"swapped labels", [](RotationPart& s) { std::swap(s.key_objective, s.value_objective); },
       "objective_side failed (key): \"sst_r_h_pbr\" is fitted for the other side"},
      {"no inverse", [](RotationPart& s) { key(s).read_rotation.data[3] += 0.001; },
       "inverse_pair failed (layer 1, key)"},
      {"no inverse in bf16", [](RotationPart& s) { key(s).read_rotation.data[3] += 0.1; },
       "inverse_pair_bf16 failed (layer 1, key)"}};
  return all;
}

RotationPart stretch(double power) {
  return Sample::get().rotations({.recipe = "stretch", .readers = {"sglang"}, .stretch_power = power});
}

void check_defects(const RotationPart& sound, const std::vector<Defect>& defects) {
  const TemporaryFolder folder;
  for (const Defect& defect : defects) {
    CAPTURE(defect.name);
    RotationPart set = sound;
    defect.plant(set);
    const Verified v = verified(written(folder, set), model_on({}));
    CHECK(v.report.verdict == Verdict::kRejected);
    check_contains(v.reasons, defect.reason);
  }
}

}  // namespace

TEST_CASE("defects of rotations are caught and named") { check_defects(Sample::get().set, defects()); }

TEST_CASE("a sound stretch proves its metric, and defects of it are caught and named") {
  for (const double power : {1.0, 0.5}) {
    CAPTURE(power);
    RotationPart sound = stretch(power);
    const TemporaryFolder folder;
    const Verified v = verified(written(folder, sound), model_on({}));
    CHECK_MESSAGE(v.report.verdict == Verdict::kNotMeasured, v.reasons);
    for (const Check& check : v.report.checks) CHECK_MESSAGE(check.ok == true, check.name, ": ", check.message);
    check_defects(sound, stretch_defects());
  }
}

TEST_CASE("channels of keys that are far larger than others do not make a pair look broken") {
  RotationPart set = stretch(1);
  LayerRotation& layer = set.layers[1];
  const auto d = static_cast<std::size_t>(layer.key.rotation.dim);
  for (const std::size_t channel : {5, 69}) {
    for (std::size_t i = channel * d; i < (channel + 1) * d; ++i) {
      layer.key.rotation.data[i] /= 40, layer.key.read_rotation.data[i] *= 40;
    }
  }
  const TemporaryFolder folder;
  const Verified v = verified(written(folder, set));
  CHECK_MESSAGE(v.reasons.find("inverse_pair") == std::string::npos, v.reasons);
}

TEST_CASE("a set cannot vouch for the model that it was fitted on") {
  const TemporaryFolder folder;
  const Verified v = verified(written(folder, Sample::get().set));
  const auto identity = std::find_if(v.report.checks.begin(), v.report.checks.end(),
                                     [](const Check& check) { return check.name == "model_identity"; });
  REQUIRE(identity != v.report.checks.end());
  CHECK_FALSE(identity->ok.has_value());
  check_contains(v.warnings, "give --model");
}

TEST_CASE("a stretch without the covariances of its fit is unknown, and never ok") {
  RotationPart set = stretch(1);
  for (LayerRotation& layer : set.layers) layer.key.query_covariance = {};
  const TemporaryFolder folder;
  const Verified v = verified(written(folder, set));
  CHECK(v.report.verdict == Verdict::kNotMeasured);
  check_contains(v.warnings, "stretch_metric is unknown (4 times): the set carries no covariances of keys and queries");
}

}  // namespace oscar
