// SPDX-License-Identifier: MIT
// What a set is held against need not be its own, and a set need not be what it was: neither may change its manifest.
#include "base/files.hpp"
#include "dump/source.hpp"
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
}

TEST_CASE("a summary does not go into a set whose files are not what its manifest lists") {
  const TemporaryFolder folder;
  const fs::path path = written(folder, Sample::get().set);
  const Json summary = verification_summary(verified(path).report);
  CHECK(summary.at("verdict") == "not_measured");
  record_verification(path, summary);
  const std::string before = read_text(path / "manifest.json");
  CHECK(Json::parse(before).at("verification").at("verdict") == "not_measured");
  write_file(path / "k_rotation_qqt_r_h_pbr.pt", "x");
  CHECK_ERROR(record_verification(path, summary), DataError, "k_rotation_qqt_r_h_pbr.pt");
  CHECK(read_text(path / "manifest.json") == before);
}

}  // namespace oscar
