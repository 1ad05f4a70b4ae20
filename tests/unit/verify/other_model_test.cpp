// SPDX-License-Identifier: MIT
// What a set is held against need not be its own, and a set need not be what it was: neither may change its manifest.
#include "base/files.hpp"
#include "dump/source.hpp"
#include "support/synthetic.hpp"
#include "unit/model/random_model.hpp"
#include "unit/verify/sample.hpp"
#include "verify/report/report.hpp"

namespace oscar {
namespace {

using namespace test;

struct OtherModel {
  TemporaryFolder folder;
  std::unique_ptr<ModelRunner> runner;

  OtherModel() {
    write_random_model("dense", folder / "model");
    runner = open_model(folder / "model");
  }
};

}  // namespace

TEST_CASE("a set that is held against another model is rejected, and the report says whose fault that is") {
  const OtherModel other;
  const fs::path path = written(other.folder, Sample::get().set);
  VerifyInputs inputs;
  inputs.runner = other.runner.get();
  inputs.model_data.texts = {some_tokens(200)};
  const Verified v = verified(path, inputs);
  CHECK(v.report.verdict == Verdict::kRejected);
  CHECK(v.report.other_model);
  CHECK(to_json(v.report).at("other_model") == true);
}

TEST_CASE("a set that is held against its own model, or against nothing, is judged itself") {
  const TemporaryFolder folder;
  RotationPart set = Sample::get().set;
  CHECK_FALSE(verified(written(folder, set), model_on({})).report.other_model);
  CHECK_FALSE(verified(folder / "set").report.other_model);
  set.layers.pop_back();  // of its own model, a layer is missing
  const Verified v = verified(written(folder, set), model_on({}));
  CHECK(v.report.verdict == Verdict::kRejected);
  CHECK_FALSE(v.report.other_model);
}

TEST_CASE("shapes tell another model where a set does not say its own") {
  const OtherModel other;
  RotationPart set = Sample::get().set;
  set.model = {};
  const fs::path path = written(other.folder, set);
  VerifyInputs inputs;
  inputs.runner = other.runner.get();
  CHECK(verified(path, inputs).report.other_model);
  CHECK_FALSE(verified(path, model_on({})).report.other_model);
}

TEST_CASE("a dump of another model than the one that is given is refused") {
  const OtherModel other;
  const fs::path path = written(other.folder, Sample::get().set);
  Status& status = Sample::get().status;
  write_dump(*open_live(*other.runner, {some_tokens(200)}, {}, status), other.folder / "dump", "pt", false, status);
  const auto dump = open_dump(other.folder / "dump", {}, status);
  VerifyInputs inputs = model_on({});
  inputs.source = dump.get();
  CHECK_ERROR(verified(path, inputs), DataError, "the dump is of another model");
  inputs.runner = nullptr;
  CHECK(verified(path, inputs).report.other_model);
  fs::remove(other.folder / "dump/manifest.json");
  const auto unnamed = open_dump(other.folder / "dump", {}, status);
  inputs = model_on({});
  inputs.source = unnamed.get();  // whose heads tell
  CHECK_ERROR(verified(path, inputs), DataError, "the dump is of another model (by its heads) than the model");
}

TEST_CASE("a dump with a layer of other heads than the set has is refused") {
  const TemporaryFolder folder;
  MemorySource source({{0, synthetic_layer({.tokens = 200, .query_heads = 3, .kv_heads = 1, .head_dim = 128})},
                       {1, synthetic_layer({.tokens = 200, .query_heads = 3, .kv_heads = 1, .head_dim = 64})}});
  VerifyInputs inputs;
  inputs.source = &source;
  CHECK_ERROR(verified(written(folder, Sample::get().set), inputs), DataError,
              "have 64 and 64 channels, in the set 128");
}

TEST_CASE("layers of other heads than the caches that grow are refused before the model runs") {
  const TemporaryFolder folder;
  write_random_model("shared caches and layer inputs", folder / "model");
  const auto runner = open_model(folder / "model");
  Status& status = Sample::get().status;
  CHECK_ERROR((void)open_live(*runner, {some_tokens(20)}, {.layers = {0, 1}}, status), UsageError,
              "layer 0 has other heads than the model's caches that grow");
  CHECK(open_live(*runner, {some_tokens(20)}, {}, status)->layer_ids() == std::vector{1, 3});
}

TEST_CASE("a summary does not go into a set whose files are not what its manifest lists") {
  const TemporaryFolder folder;
  const fs::path path = written(folder, Sample::get().set);
  const VerifyReport report = verified(path).report;
  CHECK(report.verdict == Verdict::kNotMeasured);
  CHECK(record_verification(path, report).empty());
  Json changed = read_json(path / "manifest.json");
  changed["recipe"]["name"] = "another";
  VerifyReport of_another = report;
  of_another.manifest = changed;
  CHECK(record_verification(path, of_another) == "the set was replaced while it was measured");
  const std::string before = read_text(path / "manifest.json");
  CHECK(Json::parse(before).at("verification").at("verdict") == "not_measured");
  write_file(path / "k_rotation_qqt_r_h_pbr.pt", "x");
  CHECK_ERROR((void)record_verification(path, report), DataError, "k_rotation_qqt_r_h_pbr.pt");
  CHECK(read_text(path / "manifest.json") == before);
}

}  // namespace oscar
