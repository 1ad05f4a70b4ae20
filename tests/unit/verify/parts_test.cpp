// SPDX-License-Identifier: MIT
// A set with a part for each reader: judged in one run, side by side, with a verdict for each reader.
#include <doctest/doctest.h>

#include <algorithm>

#include "base/files.hpp"
#include "inspect/inspect.hpp"
#include "unit/verify/sample.hpp"

namespace oscar {
namespace {

using namespace test;

/// The verdict of each reader in a report, or in a manifest's summary.
std::map<std::string, std::string> verdicts(const Json& json) {
  std::map<std::string, std::string> all;
  for (const auto& [reader, said] : json.at("readers").items()) all[reader] = said.at("verdict");
  return all;
}

/// The sample's set with the matrices of two layers of its rotations exchanged.
Set with_exchanged_layers() {
  Set set = Sample::get().all_parts();
  std::vector<LayerRotation>& layers = set.rotations.at(kRotationsName).layers;
  std::swap(layers[1].key.rotation, layers[2].key.rotation);
  return set;
}

VerifyOptions for_readers(std::vector<std::string> readers) {
  VerifyOptions options;
  options.compare = {"naive"};
  options.readers = std::move(readers);
  return options;
}

}  // namespace

TEST_CASE("all parts are judged in one run, each beside the same methods, and each by the limits of its bits") {
  const TemporaryFolder folder;
  const fs::path path = written(folder, Sample::get().all_parts());
  const Verified v = verified(path, model_on(Sample::get().held_out), for_readers({}));
  CHECK_MESSAGE(v.report.verdict == Verdict::kAccepted, v.reasons);
  std::vector<std::string> names;
  for (const MethodReport& method : v.report.methods) names.push_back(method.name);
  CHECK(names == std::vector<std::string>{"naive", "coded", "rotations", "with_means"});
  const Json json = to_json(v.report);
  CHECK(json["readers"]["vllm"] == Json{{"part", "coded"}, {"verdict", "accepted"}, {"reasons", Json::array()}});
  CHECK(json["readers"]["transformers"]["part"] == "coded");
  CHECK(json["readers"]["sglang"]["part"] == "with_means");
  CHECK(json["readers"]["sglang-v1"]["part"] == "rotations");
  CHECK(json["readers"]["llamacpp"]["part"] == "rotations");
  CHECK(json["set"]["model"]["num_layers"] == 4);
  CHECK(json["set"]["parts"]["rotations"]["objectives"]["value"] == "sst_r_h_pbr");
  CHECK(json["set"]["parts"]["rotations"]["bits"] == 2);
  CHECK(json["set"]["parts"]["coded"]["bits"].get<double>() == bits_of(*Sample::get().all_parts().coded));
  std::map<std::string, int> limits;
  for (const Limit& limit : v.report.limits) ++limits[limit.part];
  CHECK(limits == std::map<std::string, int>{{"coded", 2}, {"rotations", 2}, {"with_means", 2}});
  CHECK(v.report.limits[0].limit == *verify::coded_thresholds(v.report.parts[0].bits).max_kld);
  CHECK(v.report.limits[2].limit == *verify::int2_thresholds().max_kld);
  check_contains(summary_of(v.report), "sglang reads with_means: accepted\n");
  for (const Check& check : v.report.checks) CHECK_MESSAGE(check.ok != false, check.part, check.name, check.message);
  for (const char* name : {"finite", "layer_coverage", "shape"}) {
    const auto of_coded = [&](const Check& check) { return check.name == name && check.part == kCodedName; };
    CHECK_MESSAGE(std::ranges::count_if(v.report.checks, of_coded) > 0, name);
  }
}

TEST_CASE("a damaged part rejects its readers and the set; the others keep their verdict") {
  const TemporaryFolder folder;
  const fs::path path = written(folder, with_exchanged_layers());
  Verified v = verified(path, model_on(Sample::get().held_out), for_readers({}));
  CHECK(v.report.verdict == Verdict::kRejected);
  const std::map<std::string, std::string> expected{{"vllm", "accepted"},
                                                    {"transformers", "accepted"},
                                                    {"sglang", "accepted"},
                                                    {"sglang-v1", "rejected"},
                                                    {"llamacpp", "rejected"}};
  CHECK(verdicts(to_json(v.report)) == expected);
  check_contains(v.reasons, "rotations: decomposition failed (layer 1, key)");
  check_contains(v.reasons, "it is the matrix of layer 2");
  const std::string text = summary_of(v.report);
  check_contains(text, "reason: rotations: decomposition failed (layer 1, key)");
  check_contains(text, "vllm reads coded: accepted\nverdict: rejected\n");
  check_contains(text, "llamacpp reads rotations: rejected\n");

  CHECK(record_verification(path, v.report).empty());
  const Json manifest = read_json(path / "manifest.json");
  CHECK(verdicts(manifest["verification"]) == expected);
  CHECK(recorded_verdict(manifest) == Verdict::kRejected);
  CHECK(recorded_verdict(manifest, "vllm") == Verdict::kAccepted);
  CHECK(recorded_verdict(manifest, "sglang-v1") == Verdict::kRejected);
  const Inspection seen = inspect(path);
  CHECK(seen.facts["readers"]["llamacpp"] == Json{{"part", "rotations"}, {"verdict", "rejected"}});
  CHECK(seen.facts["parts"]["coded"].contains("layer 3"));
  REQUIRE_FALSE(seen.problems.empty());
  check_contains(seen.problems.front(), "rotations: layer 1: it is the matrix of layer 2");

  // Who serves the other parts only may.
  v = verified(path, model_on(Sample::get().held_out), for_readers({"vllm"}));
  CHECK_MESSAGE(v.report.verdict == Verdict::kAccepted, v.reasons);
  CHECK(verdicts(to_json(v.report)) ==
        std::map<std::string, std::string>{{"vllm", "accepted"}, {"transformers", "accepted"}});
  CHECK(record_verification(path, v.report).starts_with("--for left out parts"));
  CHECK(v.report.parts.size() == 1);
  CHECK(verified(path, {}, for_readers({"vllm", "llamacpp"})).report.verdict == Verdict::kRejected);
}

TEST_CASE("a figure above a given limit rejects its readers alone, unless they were chosen") {
  const TemporaryFolder folder;
  const fs::path path = written(folder, Sample::get().all_parts());
  VerifyOptions options = for_readers({});
  const Verified free = verified(path, model_on(Sample::get().held_out), options);
  const auto kld = [&](std::size_t method) { return free.report.methods[method].model->kld_mean; };
  REQUIRE(kld(1) < kld(2));
  options.thresholds.max_kld = (kld(1) + kld(2)) / 2;
  Verified v = verified(path, model_on(Sample::get().held_out), options);
  CHECK_MESSAGE(v.report.verdict == Verdict::kAccepted, v.reasons);
  CHECK(structure_ok(v.report));
  CHECK(verdicts(to_json(v.report)).at("vllm") == "accepted");
  CHECK(verdicts(to_json(v.report)).at("sglang-v1") == "rejected");
  check_contains(v.reasons, "rotations: model KL ");
  options.readers = {"vllm", "sglang-v1"};
  v = verified(path, model_on(Sample::get().held_out), options);
  CHECK(v.report.verdict == Verdict::kRejected);
  CHECK_FALSE(to_json(v.report)["readers"].contains("sglang"));
}

TEST_CASE("what all parts share is told once, and rejects every reader") {
  const TemporaryFolder folder;
  Set set = Sample::get().all_parts();
  const fs::path path = written(folder, set);
  VerifyInputs inputs = model_on({});
  Verified v = verified(path, inputs);
  CHECK(v.report.verdict == Verdict::kNotMeasured);
  write_file(path / "coded.safetensors", "x");
  v = verified(path, inputs);
  CHECK(v.report.verdict == Verdict::kRejected);
  CHECK(v.report.reasons.size() == 1);
  for (const auto& [reader, verdict] : verdicts(to_json(v.report))) CHECK_MESSAGE(verdict == "rejected", reader);
  CHECK(verdicts(to_json(v.report)).size() == 5);
}

TEST_CASE("the coded cache is held to the layers, the shapes and the data of the model, as rotations are") {
  const TemporaryFolder folder;
  const auto reasons = [&](const std::function<void(CodedPart&)>& change) {
    CodedPart part = *Sample::get().all_parts().coded;
    change(part);
    return verified(written(folder, part), model_on({})).reasons;
  };
  CHECK(reasons([](CodedPart&) {}).empty());
  check_contains(reasons([](CodedPart& part) { part.layers.pop_back(); }),
                 "layer_coverage failed (key): 3 against 4: nothing for layers 3 of the model");
  check_contains(reasons([](CodedPart& part) { part.calibration.tokens = 12; }),
                 "calibration_tokens failed: 12 against 256");
  check_contains(reasons([](CodedPart& part) { part.model.config_sha256 = std::string(64, 'a'); }),
                 "model_identity failed: fitted on another model");
}

TEST_CASE("readers without a part, and names that nobody has, are wrong usage") {
  const TemporaryFolder folder;
  const fs::path path = written(folder, Sample::get().set);
  CHECK_ERROR(verified(path, {}, for_readers({"llamacpp"})), UsageError, "the set has no part for llamacpp");
  CHECK_ERROR(verified("nowhere", {}, for_readers({"vlm"})), UsageError, "vlm");
}

}  // namespace oscar
