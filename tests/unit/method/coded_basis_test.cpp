// SPDX-License-Identifier: MIT
// Bases of the coded cache and their grids: by hand where moments are diagonal, and by what coded rows really lose.
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <set>

#include "kernels/reference/coded_row.hpp"
#include "method/coded_levels.hpp"
#include "support/backend.hpp"
#include "support/matrices.hpp"
#include "support/support.hpp"
#include "unit/kernels/gaussian.hpp"

namespace oscar {
namespace {

using test::diagonal;
using Vector = std::vector<double>;

/// x^T x of random rows of `dim` channels with falling deviations.
MatrixStack random_moment(int heads, int dim, unsigned seed) {
  MatrixStack out(heads, dim);
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  const auto d = static_cast<std::size_t>(dim);
  for (int h = 0; h < heads; ++h) {
    for (int n = 0; n < 6 * dim; ++n) {
      Vector x(d);
      for (std::size_t i = 0; i < d; ++i)
        x[i] = normal(engine) * std::exp2(-static_cast<double>(i % 8)) + (i > 0 ? 0.3 * x[i - 1] : 0);
      for (std::size_t i = 0; i < d * d; ++i) out[h][i] += x[i / d] * x[i % d] / (6 * dim);
    }
  }
  return out;
}

/// Sums of one token that counts once, with keys of this mean and covariance.
FisherSums read_keys(const MatrixStack& covariance, const Vector& mean) {
  FisherSums sums(covariance.count, covariance.dim);
  const auto d = static_cast<std::size_t>(covariance.dim);
  for (int h = 0; h < covariance.count; ++h) {
    sums.weight[static_cast<std::size_t>(h)] = 2;
    for (std::size_t i = 0; i < d; ++i) sums.key_sum[static_cast<std::size_t>(h) * d + i] = 2 * mean[i];
    for (std::size_t i = 0; i < d * d; ++i) sums.key[h][i] = 2 * (covariance[h][i] + mean[i / d] * mean[i % d]);
  }
  return sums;
}

/// The largest entry of W R^T - I.
double distance_from_inverse(const Transform& t) {
  const auto d = static_cast<std::size_t>(t.rotation.dim);
  double largest = 0;
  for (int h = 0; h < t.rotation.count; ++h) {
    for (std::size_t i = 0; i < d * d; ++i) {
      double sum = i / d == i % d ? -1 : 0;
      for (std::size_t k = 0; k < d; ++k) sum += t.rotation[h][i / d * d + k] * t.read_rotation[h][i % d * d + k];
      largest = std::max(largest, std::abs(sum));
    }
  }
  return largest;
}

}  // namespace

TEST_CASE("of diagonal moments the basis is the axes, by what an error costs there") {
  const auto backend = test::make_test_backend();
  const Vector query{1, 4, 9}, key{9, 1, 4}, mean{5, -1, 2};
  const CodedBasis basis =
      coded_key_basis(diagonal(query), diagonal({1, 1, 1}), 0, read_keys(diagonal(key), mean), true, *backend);
  const double floor = kMetricFloor * 14 / 3;
  const Vector expected{4 * (9 + floor), 9 * (1 + floor), 1 * (4 + floor)};  // of channels 2, 0, 1
  const int axes[] = {2, 0, 1};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(basis.lambda[i] == doctest::Approx(expected[i]).epsilon(1e-9));
    const auto axis = static_cast<std::size_t>(axes[i]);
    CHECK(std::abs(basis.transform.rotation[0][axis * 3 + i]) == doctest::Approx(std::sqrt(query[axis] + floor)));
    CHECK(basis.transform.mean[i] == doctest::Approx(mean[i]));
  }
  CHECK(distance_from_inverse(basis.transform) < 1e-12);
}

TEST_CASE("keys that are not centred have no mean, and their second moment in place of the covariance") {
  const auto backend = test::make_test_backend();
  const Vector mean{5, -1, 2};
  const MatrixStack one = diagonal({1, 1, 1});
  const CodedBasis basis = coded_key_basis(one, one, 0, read_keys(diagonal({9, 1, 4}), mean), false, *backend);
  CHECK(basis.transform.mean.empty());
  double trace = 0;
  for (const double lambda : basis.lambda) trace += lambda;
  CHECK(trace == doctest::Approx((1 + kMetricFloor) * (9 + 1 + 4 + 25 + 1 + 4)));
}

TEST_CASE("channels are uncorrelated, of the variances that are told, and errors add up") {
  const auto backend = test::make_test_backend();
  const int heads = 2, dim = 16;
  const MatrixStack query = random_moment(heads, dim, 1), plain = random_moment(heads, dim, 2),
                    key = random_moment(heads, dim, 3);
  const CodedBasis basis =
      coded_key_basis(query, plain, kPlainQueryPart, read_keys(key, Vector(dim, 0.5)), true, *backend);
  const auto d = static_cast<std::size_t>(dim);
  for (int h = 0; h < heads; ++h) {
    const auto w = basis.transform.rotation[h], r = basis.transform.read_rotation[h];
    double scale = 0, plain_scale = 0, trace_a = 0;
    for (std::size_t i = 0; i < d; ++i)
      scale += query[h][i * (d + 1)] / dim, plain_scale += plain[h][i * (d + 1)] / dim;
    Vector metric(d * d);
    for (std::size_t i = 0; i < d * d; ++i)
      metric[i] = query[h][i] + kPlainQueryPart * scale / plain_scale * plain[h][i];
    for (std::size_t i = 0; i < d; ++i) trace_a += metric[i * (d + 1)];
    for (std::size_t i = 0; i < d; ++i) metric[i * (d + 1)] += kMetricFloor * trace_a / dim;
    for (std::size_t a = 0; a < d; ++a) {
      for (std::size_t b = 0; b < d; ++b) {
        double covariance = 0, read_metric = 0;
        for (std::size_t i = 0; i < d * d; ++i) {
          covariance += w[i / d * d + a] * key[h][i] * w[i % d * d + b];
          read_metric += r[i / d * d + a] * metric[i] * r[i % d * d + b];
        }
        const double lambda = a == b ? basis.lambda[static_cast<std::size_t>(h) * d + a] : 0;
        CHECK(std::abs(covariance - lambda) < 1e-9 * basis.lambda[static_cast<std::size_t>(h) * d]);
        CHECK(std::abs(read_metric - (a == b ? 1 : 0)) < 1e-9);
      }
    }
  }
  CHECK(distance_from_inverse(basis.transform) < 1e-9);
}

TEST_CASE("values are weighed by what their errors cost, and scaled to their plain energy") {
  const auto backend = test::make_test_backend();
  const CodedBasis basis = coded_value_basis(diagonal({1, 3}), 0.5, diagonal({2, 6}), diagonal({1, 1}), *backend);
  CHECK(basis.lambda[0] == doctest::Approx(1.5 * (3 + 1 + 2 * kMetricFloor)));  // 6 m(plain) / m(weighted) = 6 / 4
  CHECK(basis.lambda[1] == doctest::Approx(0.5 * (1 + 1 + 2 * kMetricFloor)));
  CHECK(basis.transform.mean.empty());
}

TEST_CASE("moments that say nothing are refused by name") {
  const auto backend = test::make_test_backend();
  const MatrixStack some = diagonal({1, 2}), none = diagonal({0, 0});
  CHECK_ERROR((void)coded_key_basis(none, some, 0.3, read_keys(some, {0, 0}), true, *backend), NumericalError,
              "KV head 0");
  CHECK_ERROR((void)coded_key_basis(some, some, 0.3, read_keys(none, {1, 1}), true, *backend), NumericalError,
              "keys of the history");
  // Constant keys vary by the rounding of their mean alone.
  const FisherSums constant = read_keys(diagonal({1e-8, 1e-8}), {100, 100});
  CHECK_ERROR((void)coded_key_basis(some, some, 0.3, constant, true, *backend), NumericalError, "do not vary");
  CHECK_ERROR((void)coded_value_basis(some, 0, some, diagonal({NAN, 1}), *backend), NumericalError, "values");
}

TEST_CASE("channels follow their levels and mix among equals, and the sides stay inverse") {
  const auto backend = test::make_test_backend();
  const int dim = 32;
  CodedBasis basis = coded_key_basis(random_moment(1, dim, 4), random_moment(1, dim, 6), kPlainQueryPart,
                                     read_keys(random_moment(1, dim, 5), Vector(dim, 0)), true, *backend);
  const CodedBasis before = basis;
  std::vector<int> order(32), levels(32, 4);
  for (int i = 0; i < 32; ++i) order[static_cast<std::size_t>(i)] = (i + 8) % 32;
  std::fill(levels.begin() + 24, levels.end(), 1);
  reorder(basis, order);
  CHECK(basis.lambda[0] == before.lambda[8]);
  CHECK(basis.transform.rotation[0][5 * 32 + 31] == before.transform.rotation[0][5 * 32 + 7]);
  const CodedBasis ordered = basis;
  mix_equal_levels(basis, levels);
  CHECK(distance_from_inverse(basis.transform) < 1e-9);
  for (std::size_t row = 0; row < 32;
       ++row) {  // a run of 24: a Hadamard matrix of 16, one of 8; then channels of no bits
    double first = 0, second = 0;
    for (std::size_t c = 0; c < 16; ++c) first += ordered.transform.rotation[0][row * 32 + c] / 4;
    for (std::size_t c = 16; c < 24; ++c) second += ordered.transform.rotation[0][row * 32 + c] / std::sqrt(8.0);
    CHECK(basis.transform.rotation[0][row * 32] == doctest::Approx(first));
    CHECK(basis.transform.rotation[0][row * 32 + 16] == doctest::Approx(second));
    CHECK(basis.transform.rotation[0][row * 32 + 30] == ordered.transform.rotation[0][row * 32 + 30]);
  }
}

TEST_CASE("coded Gaussian rows lose what was expected") {
  const std::size_t dim = 64, n = 4000;
  std::vector<double> lambda(dim);
  for (std::size_t i = 0; i < dim; ++i) lambda[i] = std::exp2(-static_cast<double>(i) / 6);
  const CodedSpectrum spectrum{.kind = CodedKind::kKeyBeforeRope, .dim = 64, .lambda = lambda};
  const CodedLevels plan = plan_levels(std::vector{spectrum}, 2.25, CodedScope::kHead).front();
  std::mt19937 engine(9);
  std::normal_distribution<double> normal;
  std::vector<float> rows(n * dim);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<float>(normal(engine) * std::sqrt(lambda[static_cast<std::size_t>(plan.order[i % dim])]));
  }
  const CodedGrid grid = fit_grid(rows, plan.levels, 0);
  const CodedFormat format{plan.levels, grid.step, grid.sigma};
  reference::require_valid(format);
  CHECK(reference::coded_row_bytes(format) == 64 * 2 / 8 + 2);  // 2.25 bits a value
  double error = 0;
  std::vector<float> back(dim);
  for (std::size_t r = 0; r < n; ++r) {
    const std::span<const float> row(rows.data() + r * dim, dim);
    reference::coded_values(format, reference::coded_codes(format, row), back);
    for (std::size_t i = 0; i < dim; ++i)
      error += std::pow(double{row[i]} - double{back[i]}, 2) / static_cast<double>(n);
  }
  std::vector<double> ordered;
  for (const int channel : plan.order) ordered.push_back(lambda[static_cast<std::size_t>(channel)]);
  const double expected = expected_error(ordered, plan.levels, spectrum.kind);
  // Channels without bits count more than their variance, and the gain that keeps <y, y^> = <y, y> costs some.
  CHECK(error > 0.8 * expected);
  CHECK(error < 1.35 * expected);
}

TEST_CASE("where errors that are alike cost more, few levels lie further apart: as of a Gaussian, by hand") {
  std::mt19937 engine(10);
  std::normal_distribution<double> normal;
  std::vector<float> rows(200000);
  for (float& x : rows) x = static_cast<float>(normal(engine));
  // Of a Gaussian, +-a with a = f sqrt(2 / pi) leaves 1 - 4 f / pi + 2 f^2 / pi + alike (1 - 2 f / pi)^2, which is
  // least at f = (1 + alike) / (1 + 2 alike / pi). Rows over their own size are Gaussian but for some 2 %.
  for (const double alike : {0.0, 2.0, 8.0}) {
    const CodedGrid grid = fit_grid(rows, std::vector<int>(16, 2), alike);
    const double expected = 2 * std::sqrt(2 / M_PI) * (1 + alike) / (1 + 2 * alike / M_PI);
    for (const float step : grid.step) CHECK(step == doctest::Approx(expected).epsilon(0.04));
  }
}

TEST_CASE("a channel without a value is named") {
  const std::vector<float> rows{1, 0, -1, 0};
  CHECK_ERROR((void)fit_grid(rows, std::vector<int>{4, 4}, 0), NumericalError, "channel 1");
  const CodedGrid grid = fit_grid(rows, std::vector<int>{4, 1}, 0);
  CHECK(grid.sigma == std::vector<float>{1, 0});
  CHECK(grid.step[1] == 0);
}

TEST_CASE("keys before RoPE: a basis on each pair of channels, by hand and by that of whole heads") {
  // Two channels that do not turn are a whole head: the basis of keys, but for the plain part, which has no direction.
  const MatrixStack covariance = random_moment(1, 2, 5), cost = random_moment(1, 2, 6);
  FisherSums fisher = read_keys(covariance, {3, -1});
  fisher.base_key = fisher.key, fisher.base_key_sum = fisher.key_sum;
  const Rotary still{.pairs = {0, 1}, .frequency = {0}, .far_frequency = {}};
  const MatrixStack queries = diagonal({2, 2});
  const CodedBasis pair = coded_pair_basis(cost, queries, 0.1, fisher, still, {256, 4096});
  const CodedBasis whole = coded_key_basis(cost, queries, 0.1, fisher, true, *test::make_test_backend());
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(pair.lambda[i] == doctest::Approx(whole.lambda[i]).epsilon(1e-9));
    CHECK(pair.transform.mean[i] == doctest::Approx(whole.transform.mean[i]));
  }
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(std::abs(pair.transform.rotation[0][i]) == doctest::Approx(std::abs(whole.transform.rotation[0][i])));
  }
}

TEST_CASE("keys before RoPE: blocks of pairs alone, inverse, and uncorrelated in order of variance") {
  const MatrixStack covariance = random_moment(2, 16, 7), cost = random_moment(2, 16, 8);
  FisherSums fisher = read_keys(covariance, Vector(16, 0.5));
  fisher.base_key = fisher.key, fisher.base_key_sum = fisher.key_sum;
  Rotary rotary = plain_rotary(10000, 16);
  for (float& frequency : rotary.frequency) frequency *= kFastFrequency;
  const CodedBasis basis = coded_pair_basis(cost, random_moment(2, 16, 9), 0.1, fisher, rotary, {256, 4096});
  CHECK(distance_from_inverse(basis.transform) < 1e-9);
  CHECK(basis.rotary == rotary);
  for (int h = 0; h < 2; ++h) {
    for (std::size_t c = 0; c < 16; ++c) {
      if (c > 0)
        CHECK(basis.lambda[16 * static_cast<std::size_t>(h) + c] <=
              basis.lambda[16 * static_cast<std::size_t>(h) + c - 1]);
      std::vector<std::size_t> rows;
      for (std::size_t i = 0; i < 16; ++i) {
        if (basis.transform.rotation[h][i * 16 + c] != 0) rows.push_back(i);
      }
      REQUIRE(rows.size() == 2);
      CHECK(rows[1] == rows[0] + 8);
      double variance = 0;
      for (const std::size_t i : rows) {
        for (const std::size_t j : rows) {
          variance += basis.transform.rotation[h][i * 16 + c] * covariance[h][i * 16 + j] *
                      basis.transform.rotation[h][j * 16 + c];
        }
      }
      CHECK(basis.lambda[16 * static_cast<std::size_t>(h) + c] == doctest::Approx(variance).epsilon(1e-9));
    }
  }
}

TEST_CASE("keys before RoPE: both channels of a fast pair vary alike, and nothing mixes them") {
  FisherSums fisher = read_keys(diagonal({3, 1}), {1, 0});
  fisher.base_key = fisher.key, fisher.base_key_sum = fisher.key_sum;
  const Rotary fast{.pairs = {0, 1}, .frequency = {2 * kFastFrequency}, .far_frequency = {}};
  const CodedBasis basis = coded_pair_basis(random_moment(1, 2, 8), diagonal({1, 1}), 0.1, fisher, fast, {256, 4096});
  CHECK(basis.lambda[0] == basis.lambda[1]);
  CHECK((basis.transform.rotation[0][0] > 0 && basis.transform.rotation[0][0] == basis.transform.rotation[0][3]));
  CHECK((basis.transform.rotation[0][1] == 0 && basis.transform.rotation[0][2] == 0));
  // A grid is that of rows as they stand: of a cross in the plane, whose channels are as large after any turns.
  std::vector<float> rows;
  for (int n = 0; n < 4000; ++n) rows.insert(rows.end(), {static_cast<float>(1 + (n % 2 == 0 ? 2 : -2)), 0});
  const CodedSide side = coded_side(basis, {rows}, {{4, 4}, {0, 1}}, 0);
  CHECK(side.formats[0].sigma[0] == doctest::Approx(side.formats[0].sigma[1]).epsilon(0.01));
}

TEST_CASE("keys before RoPE: the metric of a pair is the mean over distances") {
  FisherSums fisher = read_keys(diagonal({1, 1}), {0, 0});
  fisher.base_key = fisher.key, fisher.base_key_sum = fisher.key_sum;
  const MatrixStack cost = random_moment(1, 2, 11), queries = diagonal({1, 1});
  const Rotary rotary{.pairs = {0, 1}, .frequency = {0.0015F}, .far_frequency = {}};
  MatrixStack spread(1, 2);
  constexpr int kSteps = 20000;
  for (int n = 0; n < kSteps; ++n) {
    const double angle = 0.0015 * (800 + (n + 0.5) / kSteps * 300), c = std::cos(angle), s = std::sin(angle);
    const double turned[2][2] = {{c, s}, {-s, c}};  // the rows of R(D): e_0 and e_1 turned
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t k = 0; k < 4; ++k) {
        spread[0][i] += turned[k / 2][i / 2] * cost[0][k] * turned[k % 2][i % 2] / kSteps;
      }
    }
  }
  const CodedBasis found = coded_pair_basis(cost, queries, 0, fisher, rotary, {800, 1100});
  const Rotary still{.pairs = {0, 1}, .frequency = {0}, .far_frequency = {}};
  const CodedBasis expected = coded_pair_basis(spread, queries, 0, fisher, still, {});
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(found.transform.rotation[0][i] == doctest::Approx(expected.transform.rotation[0][i]).epsilon(1e-6));
  }
}

}  // namespace oscar
