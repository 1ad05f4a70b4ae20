// SPDX-License-Identifier: MIT
// Saved sums decide what a bare file leaves open, as a dump of the same text would.
#include <algorithm>

#include "fit/fit.hpp"
#include "unit/verify/sample.hpp"

namespace oscar {
namespace {

using namespace test;

/// Of the text of the sample set.
const Statistics& sample_statistics() {
  static const Statistics all = [] {
    Sample& sample = Sample::get();
    const auto source = open_live(*sample.runner, sample.calibration, {}, sample.status);
    return take(FitData{*source}, {.recipe = "oscar", .clip = "off", .windows = {16, 64}}, {}, *sample.backend,
                sample.status);
  }();
  return all;
}

/// The .pt files of a set, alone.
fs::path bare(const TemporaryFolder& folder, const RotationPart& set) {
  const fs::path path = written(folder, set);
  fs::create_directories(folder / "bare");
  for (const char* name : {"k_rotation_qqt_r_h_pbr.pt", "v_rotation_sst_r_h_pbr.pt"})
    fs::copy(path / name, folder / "bare" / name);
  return folder / "bare";
}

VerifyInputs with(Statistics statistics) {
  VerifyInputs inputs;
  inputs.statistics = std::move(statistics);
  return inputs;
}

std::ptrdiff_t count_on_data(const Verified& v, std::optional<bool> ok, double limit) {
  return std::count_if(v.report.checks.begin(), v.report.checks.end(), [&](const Check& check) {
    return check.name == "decomposition_on_data" && check.ok == ok && check.limit.value_or(0) == limit;
  });
}

}  // namespace

TEST_CASE("sums of the text that a set was fitted on are its covariances") {
  const TemporaryFolder folder;
  const Verified v = verified(written(folder, Sample::get().set), with(sample_statistics()));
  CHECK(count_on_data(v, true, 0.02) == 8);
  CHECK(v.report.data.at("statistics").at("tokens") == kTokens);
  CHECK_MESSAGE(v.report.verdict == Verdict::kNotMeasured, v.reasons);
}

TEST_CASE("sums tell the layers and the matrices of bare files, and find those whose labels lie") {
  const TemporaryFolder folder, other;
  Verified v = verified(bare(folder, Sample::get().set), with(sample_statistics()));
  CHECK_MESSAGE(v.report.verdict == Verdict::kNotMeasured, v.reasons);
  CHECK(count_on_data(v, true, 0.4) == 8);
  CHECK(v.warnings.find("layer_coverage") == std::string::npos);
  CHECK(v.warnings.find("shape is unknown") == std::string::npos);

  RotationPart set = Sample::get().set;
  for (LayerRotation& layer : set.layers) {
    std::swap(layer.key.rotation, layer.value.rotation);
    std::swap(layer.key.eigenvalues, layer.value.eigenvalues);
  }
  v = verified(bare(other, set), with(sample_statistics()));
  check_contains(v.reasons, "decomposition_on_data failed (layer 0, key)");
  check_contains(v.reasons, "keys and values are swapped");
}

TEST_CASE("sums that are not there, of other text, or of some heads only") {
  const TemporaryFolder folder;
  const fs::path path = bare(folder, Sample::get().set);
  Statistics first_pass = sample_statistics();
  for (LayerStatistics& layer : first_pass.layers) layer.sst.reset();
  check_contains(verified(path, with(first_pass)).warnings,
                 "decomposition_on_data is unknown (4 times): the statistics have no sums of sst");

  Statistics other = sample_statistics();
  other.data[0].data_sha256 = "0";
  CHECK(count_on_data(verified(folder / "set", with(other)), true, 0.4) == 8);

  VerifyInputs two = with(sample_statistics());
  two.statistics->model.config_sha256 = "0";
  two.runner = Sample::get().runner.get();
  CHECK_ERROR(verified(path, two), DataError, "the statistics are of another model");

  Statistics shard = sample_statistics();
  shard.heads = {0, 1, 4};
  CHECK_ERROR(verified(path, with(shard)), DataError, "of 4 KV heads only 0 to 0 are here");
}

}  // namespace oscar
