// SPDX-License-Identifier: MIT
// The whole judge on a set that was really fitted on the sample model, and on what people do to such sets.
#include "verify/verify.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "base/files.hpp"
#include "dump/live_source.hpp"
#include "dump/source.hpp"
#include "measure/peers/baselines.hpp"
#include "set/formats.hpp"
#include "support/support.hpp"
#include "unit/verify/sample.hpp"
#include "verify/report/report.hpp"

namespace oscar {
namespace {

using namespace test;

const MethodReport& method(const VerifyReport& report, const std::string& name) {
  const auto found =
      std::find_if(report.methods.begin(), report.methods.end(), [&](const auto& m) { return m.name == name; });
  REQUIRE(found != report.methods.end());
  return *found;
}

}  // namespace

TEST_CASE("a fitted set is accepted, beats the methods beside it, and its figures go into its manifest") {
  const test::TemporaryFolder folder;
  const fs::path path = written(folder, Sample::get().set);

  const Verified v = verified(path, model_on(Sample::get().held_out));

  CHECK_MESSAGE(v.report.verdict == Verdict::kAccepted, v.reasons);
  CHECK(v.report.windows == Windows{16, 64});
  CHECK(v.report.methods.size() == 5);
  CHECK(v.report.methods[4].kind == MethodKind::kThis);
  const MethodReport& oscar = method(v.report, "rotations");
  const MethodReport& naive = method(v.report, "naive");
  CHECK(oscar.layers.size() == 4);
  const Json document = to_json(v.report);
  const Json& heads = document.at("methods")[4].at("layers")[2].at("heads");
  REQUIRE(heads.at("softmax_kl").size() == oscar.layers[2].heads.size());
  CHECK(heads.at("softmax_kl")[1].get<double>() == doctest::Approx(oscar.layers[2].heads[1].softmax_kl).epsilon(1e-4));
  CHECK(heads.at("v_sqnr_db")[1].get<double>() == doctest::Approx(*oscar.layers[2].heads[1].v_sqnr_db).epsilon(1e-4));
  CHECK(oscar.attention->softmax_kl < naive.attention->softmax_kl / 2);
  CHECK(*oscar.attention->k_sqnr_db > *naive.attention->k_sqnr_db);
  CHECK(oscar.model->kld_mean < naive.model->kld_mean / 2);
  CHECK(oscar.model->positions == kTokens - 1);
  CHECK(method(v.report, "bf16").model->kld_mean < 1e-9);
  for (const Check& check : v.report.checks) CHECK_MESSAGE(check.ok == true, check.name, ": ", check.message);

  CHECK(record_verification(path, v.report).empty());
  const Set again = read_set(path);
  CHECK(again.verification.at("verdict") == "accepted");
  CHECK(again.verification.at("methods").at("rotations").at("model").at("kld_mean") == oscar.model->kld_mean);
  CHECK(verified(path).report.verdict == Verdict::kNotMeasured);  // its structure alone
}

TEST_CASE("thresholds reject with the figure and the option, and what is not measured keeps none") {
  const test::TemporaryFolder folder;
  const fs::path path = written(folder, Sample::get().set);
  VerifyOptions options;
  options.compare = {"none"};
  options.thresholds = {1e-4, 1e-4, 1e-5, 1e-6};
  const Verified v = verified(path, model_on(Sample::get().held_out), options);
  CHECK(v.report.verdict == Verdict::kRejected);
  CHECK(v.report.methods.size() == 1);
  for (const char* option : {"--max-output-error", "--max-softmax-kl", "--max-kld", "--max-ppl-increase"})
    check_contains(v.reasons, option);
  options.thresholds = {10.0, 10.0, 10.0, 10.0};
  CHECK(verified(path, model_on(Sample::get().held_out), options).report.verdict == Verdict::kAccepted);
  check_contains(verified(path, {}, options).reasons, "model KL was not measured (--max-kld)");
}

TEST_CASE("methods that decode sequences are measured like others, in common windows or their own") {
  const test::TemporaryFolder folder;
  const fs::path path = written(folder, Sample::get().set);
  VerifyOptions options;
  options.compare = {"naive", "kivi_g128", "rotatekv", "q8_0", "int4"};
  const Verified common = verified(path, model_on(Sample::get().held_out), options);
  const MethodReport& kivi = method(common.report, "kivi_g128");
  CHECK(kivi.windows == Windows{16, 64});
  CHECK(kivi.layers.size() == 4);
  CHECK(kivi.attention->softmax_kl < method(common.report, "naive").attention->softmax_kl / 2);
  CHECK(kivi.model->kld_mean < method(common.report, "naive").model->kld_mean / 2);
  CHECK(kivi.attention->output_rel_error_k_only < kivi.attention->output_rel_error);
  CHECK(method(common.report, "q8_0").model->kld_mean < 1e-3);
  CHECK(method(common.report, "int4").attention->softmax_kl <
        method(common.report, "rotations").attention->softmax_kl / 4);
  // The model's config tells the base of RoPE.
  CHECK(common.warnings.find("rope_theta") == std::string::npos);
  // q8_0 takes more bits than the set: being better is no news.
  CHECK(common.warnings.find("worse than q8_0") == std::string::npos);

  options.own_windows = true;
  const Verified own = verified(path, model_on(Sample::get().held_out), options);
  CHECK(method(own.report, "kivi_g128").windows == Windows{0, 128});
  CHECK(method(own.report, "rotations").windows == Windows{16, 64});
  CHECK(method(own.report, "naive").model->kld_mean > method(common.report, "naive").model->kld_mean);
}

TEST_CASE("without a rotary base, what is measured after RoPE is said") {
  RotationPart set = Sample::get().set;
  set.model.rope_theta = 0;
  const test::TemporaryFolder folder;
  VerifyOptions options;
  options.compare = {"all"};
  const Verified v = verified(written(folder, set), {}, options);
  check_contains(v.warnings, "nothing tells the model's rope_theta: rotatekv quantise keys");
  CHECK(v.report.methods.size() == peers().size() + 1);
  for (const MethodReport& each : v.report.methods) CHECK_MESSAGE(!each.description.empty(), each.name);
}

TEST_CASE("figures of several sequences come with intervals, in the report and in the table") {
  const test::TemporaryFolder folder;
  std::vector<TokenSequence> texts;
  for (std::ptrdiff_t begin = 0; begin < kTokens; begin += 128) {
    const auto first = Sample::get().held_out[0].begin() + begin;
    texts.emplace_back(first, first + 128);
  }
  const Verified v = verified(written(folder, Sample::get().set), model_on(texts));
  const Json methods = to_json(v.report).at("methods");
  for (const Json& each : methods) {
    if (each.at("name") == "bf16") continue;
    CAPTURE(each.at("name"));
    const std::vector<std::pair<const char*, const char*>> figures{
        {"attention", "softmax_kl"}, {"attention", "output_rel_error"}, {"model", "kld_mean"}, {"model", "ppl_ratio"}};
    for (const auto& [part, figure] : figures) {
      const Json& interval = each.at(part).at("intervals").at(figure);
      CHECK(interval[0] < each.at(part).at(figure));
      CHECK(interval[1] > each.at(part).at(figure));
    }
  }
  std::string table;
  for (const auto& row : table_of(v.report)) {
    for (const std::string& cell : row) table += cell + " ";
  }
  check_contains(table, " ±0.0");
}

TEST_CASE("measuring on the calibration text is said") {
  const test::TemporaryFolder folder;
  VerifyOptions options;
  options.thresholds = {.max_kld = 0.1, .max_ppl_increase = 0.1};  // the set is fitted on one short sequence
  const Verified v = verified(written(folder, Sample::get().set), model_on(Sample::get().calibration), options);
  CHECK_MESSAGE(v.report.verdict == Verdict::kAccepted, v.reasons);
  check_contains(v.warnings, "attention is measured on 1 of 1 sequence that the set was fitted on");
  check_contains(v.warnings, "model is measured on 1 of 1 sequence that");
  CHECK(v.report.data.at("model").at("held_out") == false);
}

TEST_CASE("fitted text is found again in shorter sequences and in dumps, and rejects where held-out text is required") {
  const test::TemporaryFolder folder;
  Sample& sample = Sample::get();
  const fs::path path = written(folder, sample.set);
  VerifyOptions options;
  options.compare = {"none"};
  options.require_held_out = true;
  const TokenSequence& fitted = sample.calibration[0];
  std::vector<TokenSequence> texts{{fitted.begin() + 128, fitted.begin() + 384}, sample.held_out[0]};
  Verified v = verified(path, model_on(texts), options);
  CHECK(v.report.verdict == Verdict::kRejected);
  check_contains(v.reasons, "attention is measured on 1 of 2 sequences that the set was fitted on");
  check_contains(v.reasons, "(--require-held-out)");
  v = verified(path, model_on(sample.held_out), options);
  CHECK_MESSAGE(v.report.verdict == Verdict::kAccepted, v.reasons);
  CHECK(v.report.data.at("attention").at("held_out") == true);
  CHECK(v.report.data.at("model").at("sequences_fitted_on") == 0);

  VerifyInputs needle = model_on({});
  needle.model_data.needles = sample.calibration, needle.model_data.answer_lengths = {4};
  check_contains(verified(path, needle, options).reasons, "model is measured on 1 of 1 sequence that the set was");

  write_dump(*open_live(*sample.runner, sample.calibration, {}, sample.status), folder / "dump", "pt", false,
             sample.status);
  const auto dump = open_dump(folder / "dump", {.max_tokens = 200}, sample.status);
  VerifyInputs inputs;
  inputs.source = dump.get();
  check_contains(verified(path, inputs, options).reasons, "attention is measured on 1 of 1");

  RotationPart silent = sample.set;
  silent.calibration.blocks.clear();
  v = verified(written(folder, silent), model_on(sample.held_out), options);
  check_contains(v.reasons, "nothing tells whether model is measured on text that the set was fitted on");
  options.require_held_out = false;
  v = verified(folder / "set", model_on(sample.held_out), options);
  CHECK(v.report.verdict == Verdict::kAccepted);
  CHECK(v.report.data.at("model").at("held_out").is_null());
}

TEST_CASE("a changed file, swapped sides and missing layers reject the set") {
  const test::TemporaryFolder folder;
  const fs::path path = written(folder, Sample::get().set);
  std::string bytes = read_text(path / "k_rotation_qqt_r_h_pbr.pt");
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_file(path / "k_rotation_qqt_r_h_pbr.pt", bytes);
  check_contains(verified(path).reasons, "k_rotation_qqt_r_h_pbr.pt was changed after it was written");
  fs::remove(path / "k_rotation_qqt_r_h_pbr.pt");
  check_contains(verified(path).reasons, "k_rotation_qqt_r_h_pbr.pt is missing");

  RotationPart set = Sample::get().set;
  for (LayerRotation& layer : set.layers) std::swap(layer.key.rotation, layer.value.rotation);
  check_contains(verified(written(folder, set)).reasons, "keys and values are swapped; and 7 more of this kind");

  set = Sample::get().set;
  set.layers.pop_back();
  const Verified v = verified(written(folder, set), model_on(Sample::get().held_out));
  check_contains(v.reasons, "nothing for layers 3 of the model");
  CHECK(v.report.methods.empty());
}

TEST_CASE("foreign files: unknown where nothing can tell, decided by data") {
  const test::TemporaryFolder folder;
  const fs::path path = written(folder, Sample::get().set);
  const fs::path key = folder / "bare/k_rotation.pt";
  const fs::path value = folder / "bare/v_rotation.pt";
  fs::create_directories(folder / "bare");
  fs::copy(path / "k_rotation_qqt_r_h_pbr.pt", key);
  fs::copy(path / "v_rotation_sst_r_h_pbr.pt", value);

  Verified v = verified(folder / "bare");
  CHECK(v.report.verdict == Verdict::kNotMeasured);
  for (const char* name : {"decomposition", "layer_coverage", "model_identity", "file_hashes", "clip_ratio"}) {
    check_contains(v.warnings, std::string(name) + " is unknown");
  }
  v = verified(folder / "bare", model_on(Sample::get().held_out));
  CHECK_MESSAGE(v.report.verdict == Verdict::kAccepted, v.reasons);
  check_contains(v.warnings, "measured with the published 0.96 for keys");
  CHECK(v.warnings.find("decomposition is unknown") == std::string::npos);
  const auto on_data = std::count_if(v.report.checks.begin(), v.report.checks.end(), [](const Check& check) {
    return check.name == "decomposition_on_data" && check.ok == true;
  });
  CHECK(on_data == 8);

  v = verified(key);
  CHECK(v.report.verdict == Verdict::kNotMeasured);
  check_contains(v.warnings, "only one side is given");
  CHECK(v.report.methods.empty());

  fs::rename(key, folder / "bare/x");
  fs::rename(value, key);
  fs::rename(folder / "bare/x", value);
  v = verified(folder / "bare", model_on(Sample::get().held_out));
  check_contains(v.reasons, "objective_side failed (key)");
}

TEST_CASE("the table leaves out what was not measured") {
  VerifyReport report;
  report.methods = {{.name = "bf16", .kind = MethodKind::kExact}, {.name = "oscar", .kind = MethodKind::kThis}};
  CHECK(table_of(report)[0] == std::vector<std::string>{"method", "bits fp16", "bits fp32"});
  report.methods[0].windows = {1, 2};
  CHECK(table_of(report)[0][1] == "windows");
  CHECK(table_of(report)[1][1] == "1+2");
  CHECK(table_of(report)[2][1] == "-");
  report.methods[0].windows = report.windows;
  report.methods[1].attention = AttentionMetrics{};
  report.methods[1].model = ModelMetrics{.retrieval = 0.5, .needle_hits = 1, .needles = 2};
  CHECK(table_of(report)[0] ==
        std::vector<std::string>{"method", "bits fp16", "bits fp32", "attention error", "softmax KL", "retrieval"});
  CHECK(table_of(report)[1][5] == "-");
  CHECK(table_of(report)[2][5] == "1/2");
  report.checks = {{"a", {}, "", {}, {}, true, ""}, {"b", {}, "", {}, {}, {}, ""}, {"c", {}, "", {}, {}, false, ""}};
  report.methods[0].bits.context = 4096;
  check_contains(
      summary_of(report),
      "bits: per element of a context of 4096 tokens, windows included\nstructure: 1 ok, 1 unknown, 1 failed");
  report.methods.clear();
  CHECK(summary_of(report).find("bits") == std::string::npos);
}

}  // namespace oscar
