// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "method/compose.hpp"
#include "method/solve.hpp"
#include "support/backend.hpp"
#include "support/matrices.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

/// X^T X / n for n = 4 dim Gaussian rows whose channel i has the scale of `scales`.
MatrixStack covariance(const std::vector<double>& scales, unsigned seed) {
  const int dim = static_cast<int>(scales.size());
  MatrixStack out(1, dim);
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  for (int n = 0; n < 4 * dim; ++n) {
    std::vector<double> x(scales);
    for (double& value : x) value *= normal(engine);
    for (int i = 0; i < dim; ++i) {
      for (int j = 0; j < dim; ++j)
        out[0][static_cast<std::size_t>(i * dim + j)] +=
            x[static_cast<std::size_t>(i)] * x[static_cast<std::size_t>(j)] / (4 * dim);
    }
  }
  return out;
}

/// tr(T^T C_K T) tr(R^T C_Q R), which a stretch makes small.
double product(const Transform& t, const MatrixStack& key, const MatrixStack& query) {
  const int d = key.dim;
  const auto energy = [&](std::span<const double> matrix, std::span<const double> covariance) {
    return trace(multiply(multiply(transposed(matrix, d), covariance, d), matrix, d), d);
  };
  return energy(t.rotation[0], key[0]) * energy(t.read()[0], query[0]);
}

}  // namespace

TEST_CASE("covariances that commute are stretched by hand: M = (c_q / c_k)^1/2") {
  const std::vector<double> key{16, 4, 1, 1}, query{1, 4, 4, 1};
  const MatrixStack c_k = test::diagonal(key), c_q = test::diagonal(query);
  const auto backend = test::make_test_backend();
  const Stretched s = stretch({{&c_k, &c_q}}, {.lambda = 1e-9}, *backend).front();
  // sum sqrt(c_k c_q) = 4 + 4 + 2 + 1 = 11; 22 * 10 / 121
  CHECK(s.predicted_gain.front() == doctest::Approx(220.0 / 121).epsilon(1e-9));
  // The scaled covariances are c_k / 5.5 and c_q / 2.5.
  const Matrix metric = multiply(s.transform.rotation[0], transposed(s.transform.rotation[0], 4), 4);
  for (std::size_t i = 0; i < 4; ++i) {
    const double expected = std::sqrt(query[i] / 2.5 / (key[i] / 5.5));
    CHECK(metric[i * 5] == doctest::Approx(expected).epsilon(1e-6));
  }
  // cond(T) = sqrt(max M / min M) = sqrt(2 / 0.25)
  CHECK(s.condition.front() == doctest::Approx(std::sqrt(8.0)).epsilon(1e-6));
}

TEST_CASE("a stretch reaches its predicted gain, and its two sides are inverse to 1e-6") {
  std::vector<double> strong(32, 1.0), weak(32, 1.0);
  strong[3] = strong[17] = 12, weak[3] = weak[17] = 1.0 / 12;
  const MatrixStack key = covariance(strong, 1), query = covariance(weak, 2);
  const auto backend = test::make_test_backend();
  const Stretched s = stretch({{&key, &query}}, {.lambda = 1e-7}, *backend).front();
  const double of_any_rotation = trace(key[0], 32) * trace(query[0], 32);
  CHECK(of_any_rotation / product(s.transform, key, query) == doctest::Approx(s.predicted_gain.front()).epsilon(1e-3));
  CHECK(s.predicted_gain.front() > 3);
  const Matrix unit = multiply(s.transform.rotation[0], transposed(s.transform.read_rotation[0], 32), 32);
  for (std::size_t i = 0; i < unit.size(); ++i) CHECK(std::abs(unit[i] - (i % 33 == 0 ? 1.0 : 0.0)) < 1e-6);
  CHECK(s.bf16_disturbance.front() < 1e-4);
  CHECK(std::is_sorted(s.eigenvalues.begin(), s.eigenvalues.end()));
}

TEST_CASE("power and lambda pull a stretch towards a rotation, and its condition is bounded") {
  std::vector<double> strong(16, 1.0);
  strong[5] = 1e4;
  const MatrixStack key = covariance(strong, 1), query = covariance(std::vector<double>(16, 1.0), 2);
  const auto backend = test::make_test_backend();
  const auto condition = [&](const StretchOptions& options) {
    return stretch({{&key, &query}}, options, *backend).front().condition.front();
  };
  const double plain = condition({.lambda = 1e-6});
  CHECK(condition({.power = 0.5, .lambda = 1e-6}) == doctest::Approx(std::sqrt(plain)).epsilon(1e-3));
  CHECK(condition({.lambda = 1}) < plain);
  CHECK(plain > 10);
  CHECK(condition({.lambda = 1e-6, .max_condition = 8}) == doctest::Approx(8));
}

TEST_CASE("problems that are solved together get what each gets alone") {
  const MatrixStack a = covariance(std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8}, 1),
                    b = covariance(std::vector<double>{8, 1, 8, 1, 8, 1, 8, 1}, 2);
  const auto backend = test::make_test_backend();
  const auto both = stretch({{&a, &b}, {&b, &a}}, {}, *backend);
  const auto alone = stretch({{&b, &a}}, {}, *backend).front();
  for (std::size_t i = 0; i < 64; ++i) {
    CHECK(both[1].transform.rotation.data[i] == doctest::Approx(alone.transform.rotation.data[i]).epsilon(1e-6));
  }
}

}  // namespace oscar
