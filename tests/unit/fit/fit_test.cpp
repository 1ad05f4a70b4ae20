// SPDX-License-Identifier: MIT
#include "fit/fit.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "base/files.hpp"
#include "base/threads.hpp"
#include "set/formats.hpp"
#include "support/backend.hpp"
#include "support/support.hpp"
#include "support/synthetic.hpp"

namespace oscar {
namespace {

RotationPart fit_layers(const test::SyntheticLayer& layer, const FitOptions& options) {
  test::MemorySource source({{3, test::synthetic_layer(layer)}, {7, test::synthetic_layer(layer)}});
  const auto backend = test::make_test_backend();
  Status status;
  return fit(source, options, *backend, status).set;
}

double orthogonality_error(const MatrixStack& stack, int head) {
  const auto d = static_cast<std::size_t>(stack.dim);
  double worst = 0;
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t j = 0; j < d; ++j) {
      double dot = i == j ? -1 : 0;
      for (std::size_t k = 0; k < d; ++k) dot += stack[head][k * d + i] * stack[head][k * d + j];
      worst = std::max(worst, std::abs(dot));
    }
  }
  return worst;
}

FitOptions without_clip() {
  FitOptions options;
  options.clip = "off";
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
      CHECK(orthogonality_error(set.layers[1].key.rotation, 0) < 1e-6);
      CHECK(orthogonality_error(set.layers[1].value.rotation, 0) < 1e-6);
    }
  }
}

TEST_CASE("per-head rotations need a target that can serve them") {
  FitOptions options = without_clip();
  options.granularity = "head";
  CHECK_ERROR(fit_layers({}, options), UsageError, "use --target sglang-v3 or --target any");
  options.target = "any";
  const RotationPart set = fit_layers({}, options);
  CHECK(set.layers[0].key.rotation.count == 2);
  CHECK(set.layers[0].key.eigenvalues.size() == 32);
  CHECK(orthogonality_error(set.layers[0].key.rotation, 1) < 1e-6);
}

TEST_CASE("a rank-deficient covariance and a single token still give an orthogonal basis") {
  for (const std::int64_t tokens : {1, 3}) {
    const RotationPart set = fit_layers({.tokens = tokens}, without_clip());
    CHECK(orthogonality_error(set.layers[0].key.rotation, 0) < 1e-6);
    CHECK(std::isfinite(set.layers[0].value.eigenvalues[0]));
  }
}

TEST_CASE("the written set has the same bytes whatever the thread count") {
  const test::TemporaryFolder folder;
  FitOptions options;
  options.windows = {16, 32};
  const auto write = [&](const char* name, int threads) {
    set_num_threads(threads);
    write_rotation_set(folder / name, fit_layers({}, options), {}, false);
    set_num_threads(0);
  };
  write("one", 1);
  write("four", 4);
  for (const fs::path& file : list_files(folder / "one")) {
    CHECK_MESSAGE(read_text(folder / "one" / file) == read_text(folder / "four" / file), file.string());
  }
}

TEST_CASE("options that do not exist or do not fit are usage errors before any work") {
  const auto with = [](auto change) {
    FitOptions options;
    change(options);
    return [options] { return fit_layers({}, options); };
  };
  CHECK_ERROR(with([](FitOptions& o) { o.recipe = "magic"; })(), UsageError, "oscar, stretch, coded, hadamard");
  CHECK_ERROR(with([](FitOptions& o) { o.key_objective = "sst"; })(), UsageError, "qqt");
  CHECK_ERROR(with([](FitOptions& o) { o.composition = "hr"; })(), UsageError, "r_h_pbr");
  CHECK_ERROR(with([](FitOptions& o) { o.target = "vllm"; })(), UsageError, "sglang-v1, sglang-v3, llamacpp, any");
  for (const char* clip : {"1.2,0.9", "0.9", "a,b", "0.9,", "0.9,0.9,0.9", "-1,0.5", ""}) {
    CHECK_ERROR(with([&](FitOptions& o) { o.clip = clip; })(), UsageError, "--clip");
  }
}

}  // namespace oscar
