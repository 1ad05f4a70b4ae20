// SPDX-License-Identifier: MIT
// What verify finds on data of coded caches whose matrices are not those of their layer, side or data.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "fit/fit.hpp"
#include "unit/verify/sample.hpp"
#include "verify/structure/subject.hpp"

namespace oscar {
namespace {

using namespace test;

const CodedPart& sample_part() { return *Sample::get().all_parts().coded; }

std::vector<verify::CodedMoments> moments_on(const std::vector<TokenSequence>& texts, const CodedPart& set, bool same) {
  Sample& sample = Sample::get();
  const auto source = open_live(*sample.runner, texts, {}, sample.status);
  std::vector<verify::CodedMoments> moments;
  for (const int id : source->layer_ids()) {
    moments.push_back(verify::coded_moments_of(id, *source->open(id), set, same, *sample.backend));
  }
  return moments;
}

std::vector<Check> checks_of(const CodedPart& set, const std::vector<verify::CodedMoments>& moments) {
  std::vector<Check> checks;
  verify::check_coded_on_data(set, moments, checks);
  return checks;
}

/// "layer 1, key: message" of all that failed.
std::string failures_of(const std::vector<Check>& checks) {
  std::string text;
  for (const Check& check : checks) {
    if (check.ok == true) continue;
    text += check.name + (check.ok ? " failed" : " unknown") + " (layer " + std::to_string(*check.layer) + ", " +
            check.target + "): " + check.message + "\n";
  }
  return text;
}

/// Channels `a` and `b` of the first head of a side become their sum and difference.
void turn_channels(CodedSide& side, std::size_t a, std::size_t b) {
  const auto dim = static_cast<std::size_t>(side.transform.rotation.dim);
  for (MatrixStack* matrix : {&side.transform.rotation, &side.transform.read_rotation}) {
    for (std::size_t i = 0; i < dim; ++i) {
      double &x = matrix->data[i * dim + a], &y = matrix->data[i * dim + b];
      const double sum = (x + y) * std::sqrt(0.5), difference = (x - y) * std::sqrt(0.5);
      x = sum, y = difference;
    }
  }
}

}  // namespace

TEST_CASE("exchanged layers, and keys and values that were swapped, show on other text of the model") {
  const CodedPart& sound = sample_part();
  const auto moments = moments_on(Sample::get().held_out, sound, false);
  const std::vector<Check> checks = checks_of(sound, moments);
  CHECK(checks.size() == 8);
  CHECK_MESSAGE(failures_of(checks).empty(), failures_of(checks));
  for (std::size_t one = 0; one < 4; ++one) {
    for (std::size_t other = 0; other < one; ++other) {
      CodedPart set = sound;
      std::swap(set.layers[one].key, set.layers[other].key);
      std::string found = failures_of(checks_of(set, moments));
      const auto is_of = [](const char* side, std::size_t here, std::size_t there) {
        return "scales_on_data failed (layer " + std::to_string(here) + ", " + side + "): it is the matrix of layer " +
               std::to_string(there);
      };
      check_contains(found, is_of("key", one, other));
      check_contains(found, is_of("key", other, one));
      set = sound;
      std::swap(set.layers[one].value, set.layers[other].value);
      found = failures_of(checks_of(set, moments));
      check_contains(found, is_of("value", other, one));  // the other way round 2 and 3 are nearly alike
    }
    CodedPart set = sound;
    std::swap(set.layers[one].key, set.layers[one].value);
    check_contains(failures_of(checks_of(set, moments)),
                   "it is the matrix of the other side: keys and values are swapped");
  }
}

TEST_CASE("a set that was fitted on few tokens is where it belongs, although another layer's matrix fits better") {
  Sample& sample = Sample::get();
  const auto text = [](const char* name, std::int64_t tokens) {
    return read_tokens(data(std::string("golden/qwen3-2m/") + name), {kTokens, tokens, 0});
  };
  const CodedPart few = *sample.fitted({.recipe = "coded"}, text("tokens_calib.npy", 1024)).coded;
  const std::string found = failures_of(checks_of(few, moments_on(text("tokens_eval.npy", 2048), few, false)));
  CHECK_MESSAGE(found.empty(), found);
}

TEST_CASE("matrices of no layer of the set do not belong to it") {
  CodedPart set = sample_part();
  for (CodedLayer& layer : set.layers) {
    for (CodedSide* side : {&layer.key, &layer.value}) {
      for (double& entry : side->transform.rotation.data) entry *= 100;
    }
  }
  set.layers = {set.layers[2]};
  std::vector<verify::CodedMoments> moments = moments_on(Sample::get().held_out, set, false);
  CHECK(failures_of(checks_of(set, moments)) ==
        "scales_on_data failed (layer 2, key): it does not belong to this layer, side, model or data\n"
        "scales_on_data failed (layer 2, value): it does not belong to this layer, side, model or data\n");
  moments[2].tokens = 511;
  CHECK(failures_of(checks_of(set, moments)) ==
        "scales_on_data unknown (layer 2, key): too few tokens to tell: give at least 512\n"
        "scales_on_data unknown (layer 2, value): too few tokens to tell: give at least 512\n");
}

TEST_CASE("of the rows that a set was fitted to, coordinates are uncorrelated, or of equal levels and mixed") {
  Sample& sample = Sample::get();
  const CodedPart sound = *sample.fitted({.recipe = "coded", .bits = 3, .keys = "after-rope"}).coded;
  const auto moments = moments_on(sample.calibration, sound, true);
  const std::vector<Check> checks = checks_of(sound, moments);
  CHECK_MESSAGE(failures_of(checks).empty(), failures_of(checks));
  CHECK(std::ranges::count(checks, "decomposition_on_data", &Check::name) == 8);
  for (const Check& check : checks) CHECK(*check.value < 0.01);
  const CodedFormat& format = sound.layers[1].value.formats[0];
  std::size_t next = 0;
  while (format.levels[next] == format.levels[0]) ++next;
  CodedPart set = sound;
  turn_channels(set.layers[1].value, 0, next);  // they have different levels, and are not mixed
  CHECK(failures_of(checks_of(set, moments)) ==
        "decomposition_on_data failed (layer 1, value): coordinates that were not mixed covary\n");
  // What a fit to a model has seen, tokens alone do not give again.
  set.recipe["context"] = 2048;
  CHECK(failures_of(checks_of(set, moments_on(sample.calibration, set, true))).empty());
}

TEST_CASE("saved rows of keys and values tell of exchanged layers, too") {
  Sample& sample = Sample::get();
  VerifyInputs inputs;
  const auto source = open_live(*sample.runner, sample.held_out, {}, sample.status);
  inputs.statistics = take(FitData{*source}, {.recipe = "oscar", .clip = "off"}, {}, *sample.backend, sample.status);
  const TemporaryFolder folder, other;
  CodedPart set = *sample.fitted({.recipe = "coded", .keys = "after-rope"}).coded;  // which those rows are of
  const fs::path sound = written(other, set);
  CHECK(verified(sound, inputs).report.verdict == Verdict::kNotMeasured);
  std::swap(set.layers[1].key, set.layers[2].key);
  check_contains(verified(written(folder, set), inputs).reasons, "scales_on_data failed (layer 1, key)");
  inputs.statistics->layers[3].key_rows.clear();
  check_contains(verified(sound, inputs).warnings, "scales_on_data is unknown: the statistics keep no rows of keys");
}

TEST_CASE("verify of a coded set looks at its coordinates on the data that it is given") {
  CodedPart set = sample_part();
  std::swap(set.layers[1].key, set.layers[2].key);
  const TemporaryFolder folder;
  VerifyOptions options;
  options.compare = {"none"};
  const Verified v = verified(written(folder, set), model_on(Sample::get().held_out), options);
  CHECK(v.report.verdict == Verdict::kRejected);
  check_contains(v.reasons, "scales_on_data failed (layer 1, key)");
  check_contains(v.reasons, "it is the matrix of layer 2");
}

}  // namespace oscar
