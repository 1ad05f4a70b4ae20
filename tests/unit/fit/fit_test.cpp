// SPDX-License-Identifier: MIT
#include "fit/fit.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "base/files.hpp"
#include "base/threads.hpp"
#include "set/set_folder.hpp"
#include "support/backend.hpp"
#include "support/fit_source.hpp"
#include "support/matrices.hpp"
#include "support/support.hpp"
#include "support/synthetic.hpp"

namespace oscar {
namespace {

RotationPart fit_layers(const test::SyntheticLayer& layer, const FitOptions& options) {
  test::MemorySource source({{3, test::synthetic_layer(layer)}, {7, test::synthetic_layer(layer)}});
  const auto backend = test::make_test_backend();
  Status status;
  return test::fit_rotations_of(source, options, *backend, status);
}

FitOptions without_clip() {
  FitOptions options;
  options.recipe = "oscar", options.clip = "off";
  return options;
}

}  // namespace

TEST_CASE("a planted diagonal covariance is found: eigenvectors are channels in order") {
  FitOptions options = without_clip();
  options.composition = "plain";

  const RotationPart set = fit_layers({.tokens = 4000, .decay = 0.6}, options);

  REQUIRE(set.layers.size() == 2);
  CHECK(set.layers[0].layer_id == 3);
  for (const SideTransform* side : {&set.layers[0].key, &set.layers[1].value}) {
    for (int j = 0; j < 16; ++j) {  // column j is channel 15 - j: eigenvalues ascend
      CHECK(side->rotation.data[static_cast<std::size_t>((15 - j) * 16 + j)] > 0.98);
      CHECK(side->eigenvalues[static_cast<std::size_t>(j)] ==
            doctest::Approx(std::pow(0.36, 15 - j)).epsilon(0.15).scale(0));
    }
  }
}

TEST_CASE("every recipe gives orthogonal float32 matrices, for any head dimension") {
  for (const int dim : {16, 96, 24}) {
    for (const char* recipe : {"oscar", "hadamard"}) {
      CAPTURE(dim);
      CAPTURE(recipe);
      FitOptions options = without_clip();
      options.recipe = recipe;
      const RotationPart set = fit_layers({.tokens = 400, .head_dim = dim, .decay = 0.95}, options);
      CHECK(set.layers[1].key.rotation.dim == dim);
      CHECK(test::orthogonality_error(set.layers[1].key.rotation[0]) < 1e-6);
      CHECK(test::orthogonality_error(set.layers[1].value.rotation[0]) < 1e-6);
    }
  }
}

TEST_CASE("per-head rotations need a reader that can read them") {
  FitOptions options = without_clip();
  options.granularity = "head", options.readers = {"llamacpp"};
  CHECK_ERROR(fit_layers({}, options), UsageError, "readers that can: --for sglang");
  options.readers.clear();
  const RotationPart set = fit_layers({}, options);
  CHECK(set.layers[0].key.rotation.count == 2);
  CHECK(set.layers[0].key.eigenvalues.size() == 32);
  CHECK(test::orthogonality_error(set.layers[0].key.rotation[1]) < 1e-6);
}

TEST_CASE("a rank-deficient covariance and a single token still give an orthogonal basis") {
  for (const std::int64_t tokens : {1, 3}) {
    const RotationPart set = fit_layers({.tokens = tokens}, without_clip());
    CHECK(test::orthogonality_error(set.layers[0].key.rotation[0]) < 1e-6);
    CHECK(std::isfinite(set.layers[0].value.eigenvalues[0]));
  }
}

TEST_CASE("the written set has the same bytes whatever the thread count") {
  const test::TemporaryFolder folder;
  FitOptions options;
  options.windows = {16, 32};
  const auto all_parts = [&] {
    test::MemorySource source({{3, test::synthetic_layer({})}, {7, test::synthetic_layer({})}});
    Status status;
    return test::fit_source(source, options, *test::make_test_backend(), status);
  };
  const auto write = [&](const char* name, int threads) {
    set_num_threads(threads);
    write_set(folder / name, all_parts(), {}, false);
    set_num_threads(0);
  };
  write("one", 1);
  write("four", 4);
  for (const fs::path& file : list_files(folder / "one")) {
    CHECK_MESSAGE(read_text(folder / "one" / file) == read_text(folder / "four" / file), file.string());
  }
}

TEST_CASE("recipe auto gives each reader the part that it reads best, and only what is asked for") {
  const auto parts_for = [](std::vector<std::string> readers, bool codable = true) {
    FitOptions options;
    options.readers = std::move(readers);
    const FitPlan plan = plan_parts(options, codable);
    std::string names = plan.coded ? "coded" : "";
    for (const auto& [name, recipe] : plan.rotations) {
      names += (names.empty() ? "" : " ") + name + "=" + recipe.key_name() + (recipe.center ? "," : "") +
               (recipe.key_per_head ? "h" : "");
    }
    return names;
  };
  CHECK(parts_for({}) == "coded rotations=qqt_r_h_pbr with_means=stretch_fisher_r_h_pbr,h");
  CHECK(parts_for({"transformers"}) == "coded");
  CHECK(parts_for({"llamacpp", "sglang-v1"}) == "rotations=qqt_r_h_pbr");
  CHECK(parts_for({"sglang"}) == "with_means=stretch_fisher_r_h_pbr,h");
  // Of heads that the coded cache does not take.
  CHECK(parts_for({}, false) == "rotations=qqt_r_h_pbr with_means=stretch_fisher_r_h_pbr,h");
  CHECK(parts_for({"vllm"}, false) == "coded");  // which the caller refuses, and says why
}

TEST_CASE("readers of the coded cache alone are given no rotations") {
  for (const char* recipe : {"oscar", "stretch", "hadamard"}) {
    const FitOptions options{.recipe = recipe, .readers = {"vllm"}};
    CHECK_ERROR((void)plan_parts(options), UsageError, "vllm cannot read rotations");
  }
}

TEST_CASE("clip ratios that are none are usage errors before any work") {
  for (const char* clip : {"1.2,0.9", "0.9", "a,b", "0.9,", "0.9,0.9,0.9", "-1,0.5", ""}) {
    FitOptions options;
    options.recipe = "oscar", options.clip = clip;
    CHECK_ERROR((void)fit_layers({}, options), UsageError, "--clip");
  }
}

TEST_CASE("where nobody is named, one reader of a codec is enough") {
  FitOptions options;
  options.codec = "lloyd-max";
  CHECK(plan_parts(options).rotations.size() == 2);
}

TEST_CASE("one walk makes the parts that fits of their own make, with one model, data and windows") {
  test::MemorySource source({{3, test::synthetic_layer({})}, {7, test::synthetic_layer({.seed = 2})}});
  const auto backend = test::make_test_backend();
  Status status;
  FitOptions options;
  options.windows = {16, 32};
  const Set all = test::fit_source(source, options, *backend, status);
  REQUIRE(all.coded);
  REQUIRE(all.rotations.size() == 2);
  CHECK(parts_of_readers(all).at("vllm") == kCodedName);
  CHECK(parts_of_readers(all).at("sglang") == kWithMeansName);
  CHECK(parts_of_readers(all).at("llamacpp") == kRotationsName);
  options.recipe = "oscar";
  const RotationPart alone = test::fit_rotations_of(source, options, *backend, status);
  options.recipe = "stretch", options.key_objective = "fisher", options.center = true;
  const Set stretched = test::fit_source(source, options, *backend, status);
  const auto same = [](const RotationPart& one, const RotationPart& other) {
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(one.layers[i].key.rotation.data == other.layers[i].key.rotation.data);
      CHECK(one.layers[i].key.mean == other.layers[i].key.mean);
      CHECK(one.layers[i].value.rotation.data == other.layers[i].value.rotation.data);
      CHECK(one.layers[i].value.clip_ratio == other.layers[i].value.clip_ratio);
    }
  };
  same(all.rotations.at(kRotationsName), alone);
  same(all.rotations.at(kWithMeansName), stretched.rotations.at(kWithMeansName));
  options = {.recipe = "coded", .windows = {16, 32}};
  const Set coded = test::fit_source(source, options, *backend, status);
  CHECK(coded.coded->layers[1].key.transform.rotation.data == all.coded->layers[1].key.transform.rotation.data);
  CHECK(coded.rotations.empty());
}

TEST_CASE("where the mean key has most of the energy, readers without means are told, and the set says how much") {
  const auto fit_with_offset = [](float offset, Status& notices) {
    std::map<int, std::vector<test::MemoryChunk>> layers;
    for (const int id : {3, 7}) {
      layers[id] = test::synthetic_layer({.seed = static_cast<std::uint64_t>(id)});
      layers[id][0].k = convert(layers[id][0].k, DType::kF32);
      for (float& value : layers[id][0].k.values<float>()) value += id == 7 ? offset : 0;
    }
    test::MemorySource source(std::move(layers));
    FitOptions options;
    options.readers = {"sglang-v1", "llamacpp"}, options.windows = {16, 32};
    return test::fit_rotations_of(source, options, *test::make_test_backend(), notices);
  };
  test::HeardStatus high, low;
  const RotationPart part = fit_with_offset(2, high);
  CHECK(part.recipe["mean_key"]["layer_id"] == 7);
  CHECK(part.recipe["mean_key"]["share_of_energy"] > 0.9);
  CHECK(high.text.find("sglang-v1 and llamacpp read rotations without means, and in layer 7 the mean key has 9") !=
        std::string::npos);
  CHECK(fit_with_offset(0, low).recipe["mean_key"]["share_of_energy"] < 0.1);
  CHECK(low.text.find("mean key") == std::string::npos);
}

TEST_CASE(
    "heads that the coded cache does not take get rotations, with one line, and are refused where its readers are "
    "named") {
  test::HeardStatus notices;
  test::MemorySource source({{3, test::synthetic_layer({.head_dim = 12})}});
  const auto backend = test::make_test_backend();
  FitOptions options;
  options.windows = {16, 32};
  const FitData data{.source = source, .uncodable = why_not_coded(source)};
  CHECK(data.uncodable == "heads of keys have 12 channels in layer 3, and the coded cache takes multiples of 8");
  const Statistics taken = take(data, options, {}, *backend, notices);
  const Set set = fit(taken, options, *backend, notices);
  CHECK_FALSE(set.coded);
  CHECK(parts_of_readers(set).at("sglang") == kWithMeansName);
  CHECK_FALSE(parts_of_readers(set).contains("vllm"));
  CHECK(notices.text.find("the coded cache, which vllm and transformers read, is left out: heads of keys") !=
        std::string::npos);
  for (const FitOptions& named : {FitOptions{.recipe = "coded", .windows = options.windows},
                                  FitOptions{.readers = {"vllm", "sglang"}, .windows = options.windows}}) {
    CHECK_ERROR((void)take(data, named, {}, *backend, notices), DataError, "multiples of 8");
    CHECK_ERROR((void)fit(taken, named, *backend, notices), DataError, "multiples of 8");
  }
}

}  // namespace oscar
