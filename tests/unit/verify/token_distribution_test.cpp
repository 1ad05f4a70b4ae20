// SPDX-License-Identifier: MIT
#include "verify/predictions/token_distribution.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

namespace oscar::verify {
namespace {

constexpr double kTolerance = 1e-12;

std::vector<float> random_logits(std::size_t vocab, double spread, std::mt19937& random) {
  std::normal_distribution<double> normal(0, spread);
  std::vector<float> logits(vocab);
  for (float& x : logits) x = static_cast<float>(normal(random));
  return logits;
}

/// log(sum_i exp(x_i)) by a plain loop.
double plain_log_sum(const std::vector<float>& row) {
  double highest = row[0], sum = 0;
  for (const float x : row) highest = std::max(highest, double{x});
  for (const float x : row) sum += std::exp(x - highest);
  return highest + std::log(sum);
}

PositionFigures plain_figures(const std::vector<float>& exact, const std::vector<float>& other, std::size_t next) {
  const double exact_sum = plain_log_sum(exact), other_sum = plain_log_sum(other);
  PositionFigures f;
  f.nll = other_sum - other[next];
  f.nll_change = (exact[next] - exact_sum) + f.nll;
  f.dp = std::exp(other[next] - other_sum) - std::exp(exact[next] - exact_sum);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double log_p = exact[i] - exact_sum;
    if (log_p > -16) f.kld += std::exp(log_p) * (log_p - (other[i] - other_sum));
  }
  return f;
}

}  // namespace

TEST_CASE("figures of a position equal plain loops, whatever the size of the vocabulary") {
  std::mt19937 random(3);
  for (const std::size_t vocab : {std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{1000}}) {
    CAPTURE(vocab);
    for (const double spread : {0.01, 1.0, 8.0}) {
      const std::vector<float> exact = random_logits(vocab, spread, random),
                               other = random_logits(vocab, spread, random);
      TokenDistribution p, q;
      p.read(exact);
      q.read(other);
      const PositionFigures seen = compare(p, q, vocab / 2), plain = plain_figures(exact, other, vocab / 2);
      CHECK(std::abs(p.log_sum() - plain_log_sum(exact)) <= kTolerance);
      CHECK(std::abs(seen.nll - plain.nll) <= kTolerance);
      CHECK(std::abs(seen.nll_change - plain.nll_change) <= kTolerance);
      CHECK(std::abs(seen.dp - plain.dp) <= kTolerance);
      CHECK(std::abs(seen.kld - plain.kld) <= kTolerance * (1 + plain.kld));
    }
  }
}

TEST_CASE("tokens that a model excludes do not count, and the first of equals is the top") {
  const float none = -std::numeric_limits<float>::infinity();
  const std::vector<float> exact{1, none, 3, 3, none}, other{2, none, 3, 1, 0};
  TokenDistribution p, q;
  p.read(exact);
  q.read(other);
  CHECK(p.top() == 2);
  const PositionFigures seen = compare(p, q, 0);
  CHECK(seen.kld == doctest::Approx(plain_figures(exact, other, 0).kld));
  CHECK(seen.same_top);
  CHECK(std::isinf(compare(q, p, 0).kld));  // q finds the last token possible, p does not
}

}  // namespace oscar::verify
