// SPDX-License-Identifier: MIT
// What verify says about models whose attention is more than a softmax, and what it refuses to measure.
#include "measure/peers/baselines.hpp"
#include "unit/model/random_model.hpp"
#include "unit/verify/sample.hpp"

namespace oscar {
namespace {

using namespace test;

/// A random model, and a set fitted on it.
struct RandomModel {
  TemporaryFolder folder;
  std::unique_ptr<ModelRunner> runner;
  std::vector<TokenSequence> text{some_tokens(300)};
  fs::path path;

  explicit RandomModel(const std::string& name, bool centred = false, const Json& rope = {}) {
    write_random_model(name, folder / "model");
    const fs::path config = folder / "model/config.json";
    Json members = read_json(config);
    if (!rope.is_null()) members["rope_parameters"] = rope, write_json(config, members);
    runner = open_model(folder / "model");
    const auto source = open_live(*runner, text, {}, Sample::get().status);
    const FitOptions options{
        .recipe = "oscar", .readers = {"sglang"}, .center = centred, .clip = "0.96,0.92", .windows = {4, 16}};
    Backend& backend = *Sample::get().backend;
    Status& status = Sample::get().status;
    path = written(folder, fit(take(FitData{*source}, options, {}, backend, status), options, backend, status));
  }

  [[nodiscard]] Verified judged(const char* beside = "none") const {
    VerifyInputs inputs;
    inputs.runner = runner.get();
    inputs.model_data.texts = {some_tokens(120)};
    VerifyOptions options;
    options.compare = {beside};
    return verified(path, inputs, options);
  }
};

constexpr const char* kRules = "attention metrics leave out the model's sinks and soft caps; its own figures know them";
constexpr const char* kShifts = "keys are centred, which shifts all scores of a query: sinks and soft caps feel that";

}  // namespace

TEST_CASE("sinks and soft caps are said, and that centred keys move what they see") {
  const std::string sinks = RandomModel("sinks and stacked experts", true).judged().warnings;
  check_contains(sinks, kRules);
  check_contains(sinks, kShifts);
  const std::string caps = RandomModel("soft caps and windows").judged().warnings;
  check_contains(caps, kRules);
  CHECK(caps.find(kShifts) == std::string::npos);
  const std::string plain = RandomModel("dense", true).judged().warnings;
  CHECK(plain.find("soft caps") == std::string::npos);
}

TEST_CASE("keys that turn by scaled angles are turned back for methods that quantise them before RoPE") {
  const RandomModel model("dense", false, {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 10000.0}});
  CHECK(model.runner->config().identity.rope_theta == 0);
  CHECK(model.judged("rotatekv").warnings.find("before RoPE") == std::string::npos);
}

TEST_CASE("latents, whose keys are wider than their values: read from a dump, refused in the model") {
  const RandomModel model("latent attention");
  const auto source = open_live(*model.runner, {some_tokens(120)}, {}, Sample::get().status);
  VerifyInputs inputs;
  inputs.source = source.get();
  VerifyOptions options;
  options.compare = {"all"};
  const Verified v = verified(model.path, inputs, options);
  CHECK_MESSAGE(v.report.verdict == Verdict::kAccepted, v.reasons);
  REQUIRE(v.report.methods.size() == peers().size() + 1);
  for (const MethodReport& method : v.report.methods) {
    CAPTURE(method.name);
    CHECK(method.attention->output_rel_error < (method.kind == MethodKind::kExact ? 1e-4 : 0.2));
  }
  // Forty channels with two parameters, thirty-two with two.
  CHECK(v.report.methods[1].bits.fp16_params == doctest::Approx(2 + 4 * 16.0 / 72));
  CHECK_ERROR(model.judged(), UsageError, "latent attention, whose keys are wider than its values");
}

TEST_CASE("held-out figures that nobody asked for are missed where they are required") {
  const TemporaryFolder folder;
  VerifyOptions options;
  options.compare = {"none"};
  options.require_held_out = true;
  const Verified v = verified(written(folder, Sample::get().set), {}, options);
  CHECK(v.report.verdict == Verdict::kRejected);
  check_contains(v.reasons, "nothing was measured on held-out text: give --model or --dump (--require-held-out)");
}

}  // namespace oscar
