// SPDX-License-Identifier: MIT
// Losses of four tokens of eight channels derived by hand, and gradients against differences.
#include "codec/optr/loss.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "codec/optr/exponential.hpp"
#include "kernels/backend.hpp"
#include "kernels/products.hpp"

namespace oscar::optr {
namespace {

using Floats = std::vector<float>;

std::vector<float> identity(std::size_t dim) {
  Floats one(dim * dim);
  for (std::size_t i = 0; i < dim; ++i) one[i * dim + i] = 1;
  return one;
}

Floats gaussian(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) value = normal(random);
  return values;
}

/// Two query heads, three queries each, of seven tokens; keys are wider than values.
Reads random_reads() {
  Reads reads{6, 4, 7, 2, gaussian(7 * 6, 1), gaussian(7 * 4, 2), gaussian(2 * 3 * 6, 3), {}};
  take_scores(reads);
  return reads;
}

/// The codec adds the same to turned rows, wherever they are: what "straight through" takes it for.
Codec adding(unsigned seed) {
  return [seed](std::span<float> rows) {
    const Floats errors = gaussian(rows.size(), seed);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] += 0.3F * errors[i];
  };
}

Setting random_setting() {
  Setting setting{{1, 2}, adding(4), adding(5), {}};
  for (const unsigned seed : {6U, 7U}) {
    const Floats weight = gaussian(5 * 4, seed);
    for (std::size_t i = 0; i < 16; ++i) {
      float sum = 0;
      for (std::size_t o = 0; o < 5; ++o) sum += weight[o * 4 + i / 4] * weight[o * 4 + i % 4];
      setting.output_forms.push_back(sum / 5);
    }
  }
  return setting;
}

/// loss(R exp(X)) along a skew X, R a rotation, against <G, X>.
template <class LossAt>
void check_gradient(const LossAt& loss_at, std::size_t dim) {
  const Floats start = gaussian(dim * dim, 8), along = gaussian(dim * dim, 9);
  const Matrix rotation = turn_of(Matrix(start.begin(), start.end()), dim);
  const auto moved = [&](double by) {
    Matrix a(along.begin(), along.end()), product(dim * dim);
    for (double& value : a) value *= by;
    square_product(rotation, false, turn_of(a, dim), dim, product);
    return loss_at(Floats(product.begin(), product.end()));
  };
  constexpr double kStep = 2e-3;
  const double slope = (moved(kStep).value - moved(-kStep).value) / (2 * kStep);
  const std::vector<double> gradient = moved(0).gradient;
  double found = 0;
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) found += gradient[i * dim + j] * (along[i * dim + j] - along[j * dim + i]);
  }
  CHECK(std::abs(slope) > 0.02);
  CHECK(std::abs(found - slope) < 2e-3 * std::abs(slope));
}

}  // namespace

TEST_CASE("keys by hand: token 0 is the sink, 3 is recent, 1 and 2 are rounded to whole numbers") {
  const auto backend = make_cpu_backend();
  const float root = std::sqrt(8.0F);
  // The query reads channel 1: scores 0, 0.4, 0.6, 0 become 0, 0, 1, 0.
  Reads reads{8,
              8,
              4,
              1,
              {9, 0,    0, 0,    0, 0, 0,    9,     //
               0, 0.4F, 1, 1.6F, 2, 3, 2.6F, 1.4F,  //
               3, 0.6F, 0, 1,    2, 2, 1,    0,     //
               0, 0,    7, 0,    0, 0, 0,    0.5F},
              {0, 0, 0, 0, 0, 0, 0, 0,  //
               1, 0, 0, 0, 0, 0, 0, 0,  //
               0, 2, 0, 0, 0, 0, 0, 0,  //
               0, 0, 0, 0, 0, 0, 0, 0},
              {0, root, 0, 0, 0, 0, 0, 0},
              {}};
  take_scores(reads);
  const auto int2 = [&](std::span<float> rows) { backend->quantize(rows, 8, {}, Precision::kExact, rows, nullptr); };
  Setting setting{{1, 1}, int2, int2, identity(8)};
  setting.output_forms[0] = 10, setting.output_forms[9] = 100;

  const double e4 = std::exp(0.4), e6 = std::exp(0.6), e = std::exp(1.0);
  const double all = 2 + e4 + e6, read = 3 + e;
  const double kl = (e4 * 0.4 + e6 * (0.6 - 1)) / all - std::log(all / read);
  const double change1 = 1 / read - e4 / all, change2 = e / read - e6 / all;
  const double expected = kl + 10 * change1 * change1 + 100 * 4 * change2 * change2;
  CHECK(std::abs(key_loss(reads, identity(8), setting).value - expected) < 1e-6 * expected);
  const Floats shares = history_shares(reads, identity(8), setting);
  REQUIRE(shares.size() == 2);
  CHECK(std::abs(shares[0] - 1 / read) < 1e-6);
  CHECK(std::abs(shares[1] - e / read) < 1e-6);
}

TEST_CASE("values by hand: what the shares of two tokens make of their rounding") {
  const auto backend = make_cpu_backend();
  // Rounding adds 0, -0.4, 0, 0.4, 0, 0, 0.4, -0.4 and 0, 0.4, -0.4, 0, 0, 0, 0, 0.
  Reads reads{8,
              8,
              4,
              1,
              Floats(32),
              {9, 9,    9,    9,    9, 9, 9,    9,     //
               0, 0.4F, 1,    1.6F, 2, 3, 2.6F, 1.4F,  //
               3, 0.6F, 0.4F, 1,    2, 2, 1,    0,     //
               7, 7.5F, 7,    7,    7, 7, 7,    7},
              Floats(8),
              {}};
  take_scores(reads);
  const auto int2 = [&](std::span<float> rows) { backend->quantize(rows, 8, {}, Precision::kExact, rows, nullptr); };
  Setting setting{{1, 1}, int2, int2, identity(8)};
  setting.output_forms[3 * 9] = 50;
  // Output errors: 0, 0, -0.1, 0.1, 0, 0, 0.1, -0.1; channel 3 counts fifty times.
  const Floats shares{0.25F, 0.25F};
  CHECK(std::abs(value_loss(reads, shares, identity(8), setting).value - 0.53) < 1e-5);
}

TEST_CASE("the gradient of keys is that of differences, the outputs' part too") {
  const Reads reads = random_reads();
  Setting setting = random_setting();
  const auto loss_at = [&](const Floats& rotation) { return key_loss(reads, rotation, setting); };
  check_gradient(loss_at, 6);
  for (float& form : setting.output_forms) form = 0;
  check_gradient(loss_at, 6);
}

TEST_CASE("the gradient of values is that of differences") {
  const Reads reads = random_reads();
  const Setting setting = random_setting();
  const Floats shares = history_shares(reads, identity(6), setting);
  check_gradient([&](const Floats& rotation) { return value_loss(reads, shares, rotation, setting); }, 4);
}

}  // namespace oscar::optr
