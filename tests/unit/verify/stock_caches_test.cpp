// SPDX-License-Identifier: MIT
// Plans for the caches of engines name what was planted, in the engine's own words.
#include <cstring>

#include "unit/model/random_model.hpp"
#include "unit/verify/sample.hpp"
#include "verify/verify.hpp"

namespace oscar {
namespace {

using namespace test;

/// Multiplies a vector of a safetensors file with 2^exponent.
void scale_vector(std::string& file, const std::string& name, int exponent) {
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  const Json entry = Json::parse(file.substr(8, header_bytes)).at(name);
  const std::size_t size = entry["dtype"] == "F32" ? 4 : 2, first = 8 + header_bytes + size - 2;  // of its upper half
  for (std::size_t at = entry["data_offsets"][0]; at < entry["data_offsets"][1]; at += size) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, &file[first + at], sizeof bits);
    bits = static_cast<std::uint16_t>(bits + exponent * 128);
    std::memcpy(&file[first + at], &bits, sizeof bits);
  }
}

/// Multiplies the keys of a layer with 1,024, and divides its queries by as much: the same function, but these keys
/// overflow e4m3.
void enlarge_keys(const fs::path& weights, int layer) {
  std::string file = read_text(weights);
  const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
  scale_vector(file, prefix + "k_norm.weight", 10);
  scale_vector(file, prefix + "q_norm.weight", -10);
  write_file(weights, file);
}

std::vector<StockPlan> plans(ModelRunner& runner, const std::vector<TokenSequence>& texts,
                             std::vector<std::string> names, std::optional<double> limit = {}) {
  VerifyInputs inputs;
  inputs.runner = &runner;
  inputs.model_data.texts = texts;
  VerifyOptions options;
  options.thresholds.max_kld = limit;
  VerifyReport report;
  plan_stock_caches(report, std::move(names), inputs, options, *Sample::get().backend, Sample::get().status);
  validate_json(to_json(report), "oscar.verify_report.v1", "report");
  return report.stock;
}

}  // namespace

TEST_CASE("the plan for FP8 names the one layer whose keys overflow, which a scale or the engine's other types heal") {
  const TemporaryFolder folder;
  fs::copy(data("qwen3-2m"), folder / "model", fs::copy_options::recursive);
  enlarge_keys(folder / "model/model-00001-of-00001.safetensors", 2);
  const auto runner = open_model(folder / "model");
  const std::vector<StockPlan> found =
      plans(*runner, Sample::get().held_out, {"fp8", "fp8_scaled", "int8_per_token_head"});
  const StockPlan& fp8 = found[0];
  CHECK(fp8.limit == kStockKld);
  CHECK(fp8.tried.front().model.kld_mean > 0.1);
  REQUIRE(fp8.best() != nullptr);
  CHECK(fp8.best()->layers == std::vector{2});
  CHECK((fp8.best()->keys && fp8.best()->values));
  CHECK(fp8.best()->setting == "--kv-cache-dtype fp8 --kv-cache-dtype-skip-layers 2");
  CHECK(fp8.best()->model.kld_mean < kStockKld);
  CHECK(fp8.best()->bits == doctest::Approx((3 * 8 + 16) / 4.0));
  CHECK(fp8.tried.size() == 2);
  for (const StockLayer& layer : fp8.layers) {
    CAPTURE(layer.layer);
    CHECK((layer.key_error > 0.1) == (layer.layer == 2));
    CHECK((layer.k_scale > 1) == (layer.layer == 2));
    CHECK(layer.value_error < 0.01);
    CHECK(layer.v_scale < 1);
  }
  for (const StockPlan* healed : {&found[1], &found[2]}) {
    CAPTURE(healed->name);
    REQUIRE(healed->best() != nullptr);
    CHECK(healed->best()->layers.empty());
    CHECK(healed->tried.size() == 1);
  }
  CHECK(found[1].best()->setting == "--kv-cache-dtype fp8");
  CHECK(found[2].best()->setting == "--kv-cache-dtype int8_per_token_head");
}

TEST_CASE("llama.cpp leaves one side in 16 bits: the one with the larger errors, if that is enough") {
  Sample& sample = Sample::get();
  const auto plan = [&](double limit) { return plans(*sample.runner, sample.held_out, {"q4_0"}, limit).front(); };
  const StockPlan keys = plan(0.03);
  REQUIRE(keys.best() != nullptr);
  CHECK(keys.best()->setting == "--cache-type-k f16 --cache-type-v q4_0");
  CHECK((keys.best()->keys && !keys.best()->values));
  CHECK(keys.best()->layers == std::vector{0, 1, 2, 3});
  CHECK(keys.best()->bits == doctest::Approx((16 + 4.5) / 2));
  CHECK(plan(0.5).best()->setting == "--cache-type-k q4_0 --cache-type-v q4_0");
  CHECK(plan(1e-9).best() == nullptr);
}

TEST_CASE("more layers are left the closer the limit is, and each plan is the first that holds") {
  Sample& sample = Sample::get();
  const double whole = plans(*sample.runner, sample.held_out, {"nvfp4"}, 1).front().tried.front().model.kld_mean;
  const StockPlan all = plans(*sample.runner, sample.held_out, {"nvfp4"}, 0).front();
  CHECK(all.best() == nullptr);
  CHECK(all.tried.back().layers.size() == 3);  // all layers in bfloat16 are no nvfp4
  std::size_t least = 0;
  for (const double share : {0.9, 0.6, 0.25}) {
    const StockPlan plan = plans(*sample.runner, sample.held_out, {"nvfp4"}, share * whole).front();
    REQUIRE(plan.best() != nullptr);
    CHECK(plan.best()->layers.size() >= std::max<std::size_t>(least, 1));
    least = plan.best()->layers.size();
    const auto fewer = std::ranges::find(plan.tried, least - 1, [](const auto& each) { return each.layers.size(); });
    REQUIRE(fewer != plan.tried.end());
    CHECK(fewer->model.kld_mean > plan.limit);
  }
  CHECK(least > 1);
}

TEST_CASE("layers of a sliding window are skipped by their name, and readers of a layer's cache with it") {
  const TemporaryFolder folder;
  write_random_model("shared caches and layer inputs", folder.path());
  enlarge_keys(folder / "model.safetensors", 3);
  const auto runner = open_model(folder.path());
  const StockPlan plan = plans(*runner, {some_tokens(48)}, {"fp8"}, 1e-7).front();
  CHECK(plan.tried.front().setting == "--kv-cache-dtype fp8 --kv-cache-dtype-skip-layers sliding_window");
  CHECK(plan.tried.back().setting == "--kv-cache-dtype fp8 --kv-cache-dtype-skip-layers sliding_window 3 5");
}

}  // namespace oscar
