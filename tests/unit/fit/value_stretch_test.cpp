// SPDX-License-Identifier: MIT
// Values stretched against what the output projection makes of their errors.
#include <doctest/doctest.h>

#include <cmath>

#include "fit/fit.hpp"
#include "support/backend.hpp"
#include "support/memory_source.hpp"
#include "support/support.hpp"
#include "support/synthetic.hpp"

namespace oscar {
namespace {

constexpr int kHeads = 4, kDim = 16, kHidden = 24;

FitOptions output_options() {
  FitOptions options;
  options.recipe = "lsq", options.target = "any", options.granularity = "layer,head",
  options.value_objective = "output";
  options.stretch_lambda = 1e-6;
  return options;
}

/// Head h has (h + 1) 2^-c at (c, c).
Tensor diagonal_projection(int layer) {
  CHECK(layer == 3);
  Tensor weight(DType::kF32, {kHidden, kHeads, kDim});
  for (int h = 0; h < kHeads; ++h) {
    for (int c = 0; c < kDim; ++c) {
      weight.values<float>()[static_cast<std::size_t>((c * kHeads + h) * kDim + c)] =
          static_cast<float>(h + 1) * std::pow(0.9F, static_cast<float>(c));
    }
  }
  return weight;
}

}  // namespace

TEST_CASE("the stretch of values is the geometric mean of what they are and what the projection makes of them") {
  test::MemorySource source({{3, test::synthetic_layer({.tokens = 600, .decay = 0.8})}});
  const auto backend = test::make_test_backend();
  Status status;
  FitHooks hooks;
  hooks.output_projection = diagonal_projection;
  const RotationSet set = fit(source, output_options(), *backend, status, hooks).set;
  const SideTransform& value = set.layers[0].value;
  CHECK(set.value_objective == "stretch_output_r_h_pbr");
  REQUIRE(value.read_rotation.count == 2);
  // M: mean over two heads of squares, 0.81^c up to a factor; C about 0.64^c, so T T^T is about (0.81 / 0.64)^(c / 2).
  std::vector<double> metric;
  for (int c = 0; c < kDim; ++c) {
    double sum = 0;
    for (int j = 0; j < kDim; ++j) sum += std::pow(value.rotation[1][static_cast<std::size_t>(c * kDim + j)], 2);
    metric.push_back(sum);
  }
  for (int c = 1; c < kDim; ++c) {
    const double covariance = value.covariance[1][static_cast<std::size_t>(c * (kDim + 1))] / value.covariance[1][0];
    CHECK(metric[static_cast<std::size_t>(c)] / metric[0] ==
          doctest::Approx(std::sqrt(std::pow(0.81, c) / covariance)).epsilon(0.15));
  }
  // Heads 2 and 3 of the projection belong to KV head 1: (9 + 16) / 2.
  CHECK(value.query_covariance[1][0] == doctest::Approx(12.5));
  CHECK(value.query_covariance[0][0] == doctest::Approx(2.5));
}

TEST_CASE("without a model, or for servers of rotations, values cannot be weighed by the output") {
  test::MemorySource source({{3, test::synthetic_layer({.tokens = 60})}});
  const auto backend = test::make_test_backend();
  Status status;
  CHECK_THROWS_WITH_AS((void)fit(source, output_options(), *backend, status), doctest::Contains("no model is at hand"),
                       UsageError);
  FitOptions options = output_options();
  options.target = "sglang-v1", options.recipe = "oscar", options.granularity = "";
  FitHooks hooks;
  hooks.output_projection = diagonal_projection;
  CHECK_THROWS_WITH_AS((void)fit(source, options, *backend, status, hooks),
                       doctest::Contains("cannot serve transforms that are not rotations"), UsageError);
}

}  // namespace oscar
