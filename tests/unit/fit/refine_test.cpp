// SPDX-License-Identifier: MIT
#include "method/refine.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "base/threads.hpp"
#include "fit/fit.hpp"
#include "method/cayley.hpp"
#include "support/backend.hpp"
#include "support/memory_source.hpp"
#include "support/support.hpp"
#include "support/synthetic.hpp"

namespace oscar {
namespace {

FitOptions refined_options() {
  FitOptions options;
  options.recipe = "stretch", options.target = "any", options.granularity = "head", options.windows = {4, 16};
  options.refine = true;
  options.center = true;
  return options;
}

test::MemorySource one_layer(std::int64_t tokens) {
  return test::MemorySource({{3, test::synthetic_layer({.tokens = tokens})}});
}

/// max |rotation read^T - I|
double pair_error(const SideTransform& side) {
  double worst = 0;
  const int d = side.rotation.dim;
  for (int m = 0; m < side.rotation.count; ++m) {
    const Matrix product = multiply(side.rotation[m], transposed(side.read()[m], d), d);
    for (int i = 0; i < d * d; ++i) {
      worst = std::max(worst, std::abs(product[static_cast<std::size_t>(i)] - (i % (d + 1) == 0 ? 1 : 0)));
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("cayley turns a skew matrix into a rotation, close to its exponential") {
  const Matrix skew{0, 0.02, -0.01, -0.02, 0, 0.03, 0.01, -0.03, 0};
  const Matrix back{0, -0.02, 0.01, 0.02, 0, -0.03, -0.01, 0.03, 0};
  const Matrix turn = cayley(skew, 3), product = multiply(turn, cayley(back, 3), 3);
  const Matrix square = multiply(skew, skew, 3), gram = multiply(turn, transposed(turn, 3), 3);
  for (std::size_t i = 0; i < 9; ++i) {
    const double one = i % 4 == 0 ? 1 : 0;
    CHECK(gram[i] == doctest::Approx(one).epsilon(1e-14));
    CHECK(product[i] == doctest::Approx(one).epsilon(1e-14));
    CHECK(turn[i] == doctest::Approx(one + skew[i] + square[i] / 2).epsilon(2e-5));
  }
}

TEST_CASE("refining lowers the softmax KL, keeps the scores, and depends on no thread") {
  test::MemorySource source = one_layer(600);
  const auto backend = test::make_test_backend();
  Status status;
  const RotationSet set = fit(source, refined_options(), *backend, status).set;
  FitOptions plain = refined_options();
  plain.refine = false;
  const SideTransform& key = set.layers[0].key;
  const SideTransform unrefined = fit(source, plain, *backend, status).set.layers[0].key;
  const Json& scores = key.scores["refine"];
  REQUIRE(scores["softmax_kl_before"].size() == 2);
  for (std::size_t head = 0; head < 2; ++head) {
    CHECK(scores["softmax_kl_after"][head].get<double>() < 0.9 * scores["softmax_kl_before"][head].get<double>());
  }
  CHECK(set.key_objective == "refined_stretch_qqt_r_h_pbr");
  CHECK(pair_error(key) < 1e-5);
  CHECK(key.rotation.data != unrefined.rotation.data);
  // T U U^T T^T = T T^T
  const int d = key.rotation.dim;
  const Matrix now = multiply(key.rotation[1], transposed(key.rotation[1], d), d);
  const Matrix before = multiply(unrefined.rotation[1], transposed(unrefined.rotation[1], d), d);
  for (std::size_t i = 0; i < now.size(); ++i) CHECK(now[i] == doctest::Approx(before[i]).epsilon(1e-5));

  set_num_threads(1);
  const RotationSet alone = fit(source, refined_options(), *backend, status).set;
  set_num_threads(0);
  CHECK(alone.layers[0].key.rotation.data == key.rotation.data);
}

TEST_CASE("what is recorded is the KL that the transform has on the sample") {
  test::MemorySource source = one_layer(600);
  const auto backend = test::make_test_backend();
  Status status;
  FitOptions options = refined_options();
  const RotationSet set = fit(source, options, *backend, status).set;
  const auto sample = sample_layer(*source.open(3), options.windows, options.refining.sample);
  std::vector<LayerRotation> again(1);
  again[0].key = set.layers[0].key;
  options.refining.steps = 0;
  refine_keys(std::vector<std::span<const SampledSequence>>{sample}, set.key_codec, options.windows, options.refining,
              again, *backend, status);
  for (std::size_t head = 0; head < 2; ++head) {
    CHECK(again[0].key.scores["refine"]["softmax_kl_before"][head].get<double>() ==
          doctest::Approx(set.layers[0].key.scores["refine"]["softmax_kl_after"][head].get<double>())
              .epsilon(0.02)
              .scale(0));
  }
}

TEST_CASE("one rotation for all heads stays a rotation, and servers of rotations take it") {
  test::MemorySource source = one_layer(600);
  const auto backend = test::make_test_backend();
  Status status;
  FitOptions options;
  options.windows = {4, 16}, options.refine = true;
  const SideTransform key = fit(source, options, *backend, status).set.layers[0].key;
  CHECK(key.rotation.count == 1);
  CHECK(key.read_rotation.count == 0);
  CHECK(pair_error(key) < 1e-5);
  CHECK(key.scores["refine"]["softmax_kl_after"][0] <= key.scores["refine"]["softmax_kl_before"][0]);
}

TEST_CASE("what cannot be refined") {
  test::MemorySource source = one_layer(18);
  const auto backend = test::make_test_backend();
  Status status;
  FitOptions options = refined_options();
  const SideTransform refined = fit(source, options, *backend, status).set.layers[0].key;
  CHECK_FALSE(refined.scores.contains("refine"));
  options.recipe = "hadamard";
  CHECK_THROWS_WITH_AS((void)fit(source, options, *backend, status),
                       doctest::Contains("recipe hadamard is not refined"), UsageError);
}

}  // namespace oscar
