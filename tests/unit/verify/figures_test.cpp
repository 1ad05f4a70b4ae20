// SPDX-License-Identifier: MIT
// Figures of predictions, their quantiles and intervals, against values by hand and plain loops.
#include "measure/figures.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "measure/predictions/model_metrics.hpp"
#include "unit/verify/text_figures.hpp"

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

doctest::Approx near(double x) { return doctest::Approx(x).epsilon(1e-6); }

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

/// Two positions that have a next token: a KL of ln 2 / 4 and one of 7 ln 2 / 8.
TextFigures small_text() {
  const std::vector<float> exact =
      logits_of({0.5, 0.25, 0.125, 0.125, 0.5, 0.25, 0.125, 0.125, 0.25, 0.25, 0.25, 0.25});
  const std::vector<float> method =
      logits_of({0.25, 0.25, 0.25, 0.25, 0.125, 0.125, 0.25, 0.5, 0.25, 0.25, 0.25, 0.25});
  return test::text_figures({0, 1, 2}, method, exact);
}

}  // namespace

TEST_CASE("an interval needs two sequences and a denominator") {
  CHECK_FALSE(bootstrap(std::vector<double>{}, std::vector<double>{}).has_value());
  CHECK_FALSE(bootstrap(std::vector<double>{1}, std::vector<double>{1}).has_value());
  CHECK_FALSE(bootstrap(std::vector<double>{1, 2}, std::vector<double>{0, 1}).has_value());
  // It holds both: one draw in four repeats each of them.
  const auto interval = bootstrap(std::vector<double>{1, 6}, std::vector<double>{1, 2});
  REQUIRE(interval.has_value());
  CHECK(interval->low == 1);
  CHECK(interval->high == 3);
  const auto of_equals = bootstrap(std::vector<double>(5, 0.5), std::vector<double>(5, 2.0));
  CHECK(of_equals->low == 0.25);
  CHECK(of_equals->high == 0.25);
}

TEST_CASE("of many sequences, the interval is that of a mean: 1.96 standard errors to each side") {
  std::vector<double> values;
  for (int i = 0; i < 100; ++i) values.push_back(i % 2 == 0 ? 0.0 : 1.0);
  const auto interval = bootstrap(values, std::vector<double>(100, 1.0));
  CHECK(interval->low == doctest::Approx(0.5 - 1.96 * 0.05).epsilon(0.03).scale(0));
  CHECK(interval->high == doctest::Approx(0.5 + 1.96 * 0.05).epsilon(0.03).scale(0));
  const auto again = bootstrap(values, std::vector<double>(100, 1.0));
  CHECK(again->low == interval->low);
}

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

TEST_CASE("figures of two positions equal those by hand") {
  const double ln2 = std::log(2.0);
  const ModelMetrics m = model_metrics({small_text()}, {});
  CHECK(m.positions == 2);
  CHECK(m.ppl == near(4));
  CHECK(m.ppl_ratio == near(std::sqrt(0.5)));  // the changes are 0 and -ln 2
  CHECK(m.ppl_ratio_error == near(std::sqrt(0.5) * ln2 / 2));
  CHECK(m.kld_mean == near(0.5625 * ln2));
  CHECK(m.kld_error == near(0.3125 * ln2));
  CHECK(m.kld_median == near(0.5625 * ln2));
  CHECK(m.kld_p90 == near(0.8125 * ln2));
  CHECK(m.kld_p95 == near(0.84375 * ln2));
  CHECK(m.kld_p99 == near(0.86875 * ln2));
  CHECK(m.kld_p999 == near(0.874375 * ln2));
  CHECK(m.kld_max == near(0.875 * ln2));
  CHECK(m.mean_dp == near(0.0625));
  CHECK(m.rms_dp == near(0.125 / std::sqrt(2.0)));
  CHECK(m.same_top == 0.5);
  CHECK(m.intervals.empty());
  CHECK_FALSE(m.retrieval.has_value());
}

TEST_CASE("words that exact attention finds all but impossible do not count, as in llama.cpp") {
  const std::vector<float> exact{0, -15, -20, -20, 0, 0, 0, 0}, method{0, -15, -1000, -20, 0, 0, 0, 0};
  CHECK(test::text_figures({0, 0}, method, exact)[0].kld == doctest::Approx(0).epsilon(1e-8));
  const std::vector<float> likelier{0, -1000, -20, -20, 0, 0, 0, 0};
  CHECK(test::text_figures({0, 0}, likelier, exact)[0].kld == doctest::Approx(985 * std::exp(-15.0)));
}

TEST_CASE("KL is binned by position, over texts of different lengths") {
  TextFigures shorter = small_text();
  shorter.resize(1);
  shorter[0].kld = 1;
  const ModelMetrics m = model_metrics({small_text(), shorter}, {});
  REQUIRE(m.kld_by_position.size() == 2);
  CHECK(m.kld_by_position[0].positions == 2);
  CHECK(m.kld_by_position[0].kld_mean == near((0.25 * std::log(2.0) + 1) / 2));
  CHECK(m.kld_by_position[1].begin == 1);
  CHECK(m.kld_by_position[1].end == 2);
  CHECK(m.kld_by_position[1].kld_mean == near(0.875 * std::log(2.0)));
  // Two sequences: the interval holds both.
  CHECK(m.intervals.at("kld_mean").high == near(1));
  CHECK(m.intervals.at("ppl_ratio").low == near(std::sqrt(0.5)));
  CHECK(m.intervals.at("ppl_ratio").high == near(1));
}

TEST_CASE("needles are counted by the depth at which their answer stands") {
  CHECK(*answer_depth({7, 1, 2, 8, 8, 8, 1, 2, 3}, 3) == near(1.0 / 6));
  CHECK(*answer_depth({1, 2, 8, 1, 2, 8, 1, 2, 3}, 3) == near(0.5));  // the last place before the end
  CHECK_FALSE(answer_depth({1, 8, 2, 8, 8, 8, 1, 2, 3}, 3).has_value());
  const std::vector<AnswerResult> needles{
      {0.05, 2, 2, 2, 1}, {0.55, 1, 2, 1, 2.5}, {0.51, 2, 2, 2, 0}, {std::nullopt, 2, 2, 2, 0.5}};
  const ModelMetrics m = model_metrics({}, needles);
  CHECK(m.needle_hits == 3);
  CHECK(*m.retrieval == 0.75);
  CHECK(*m.needle_nll == near(4.0 / 8));
  CHECK_FALSE(m.quotes.has_value());
  REQUIRE(m.retrieval_by_depth.size() == 2);
  CHECK(m.retrieval_by_depth[0].hits == 1);
  CHECK(m.retrieval_by_depth[1].depth.low == near(0.5));
  CHECK(m.retrieval_by_depth[1].hits == 1);
  CHECK(m.retrieval_by_depth[1].needles == 2);
  CHECK(m.intervals.at("retrieval").high == 1);
  CHECK(m.intervals.at("retrieval").low < 0.75);
}

TEST_CASE("an answer is read token by token, to the first that is wrong and beyond") {
  // Four words; rows prefer word 1, 2, 0 and 3 by log 3 over each of the others, which leaves them half of the mass.
  std::vector<float> logits;
  for (const std::size_t word : {1U, 2U, 0U, 3U}) {
    std::vector<float> row(4, 0.0F);
    row[word] = std::log(3.0F);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  const TokenSequence sequence{9, 9, 1, 3, 0};
  const AnswerResult all = read_answer(sequence, 3, 3, logits);
  CHECK(all.found == 2);
  CHECK(all.asked == 3);
  CHECK(all.until_wrong == 1);
  CHECK(all.nll == near(std::log(2.0) + std::log(6.0) + std::log(2.0)));
  CHECK_FALSE(all.hit());
  const AnswerResult without_last = read_answer(sequence, 3, 1, logits);
  CHECK(without_last.hit());
  CHECK(without_last.nll == near(std::log(2.0)));
}

TEST_CASE("quotations count every token") {
  const std::vector<AnswerResult> quotes{{0.5, 4, 4, 4, 1}, {0.25, 2, 4, 1, 5}};
  const ModelMetrics m = model_metrics({}, {}, quotes);
  REQUIRE(m.quotes.has_value());
  CHECK(m.quotes->quotes == 2);
  CHECK(m.quotes->right_to_the_end == 1);
  CHECK(m.quotes->tokens_right == near(0.75));
  CHECK(m.quotes->tokens_until_wrong == near(2.5));
  CHECK(m.quotes->nll == near(6.0 / 8));
  CHECK(m.intervals.at("quoted_tokens_right").low == near(0.5));
  CHECK(m.intervals.at("quoted_tokens_right").high == near(1));
  CHECK_FALSE(m.needle_nll.has_value());
}

TEST_CASE("quantiles lie between neighbours") {
  CHECK(quantile({}, 0.5) == 0);
  CHECK(quantile(std::vector<double>{3}, 0.9) == 3);
  CHECK(quantile(std::vector<double>{0, 1, 2, 4}, 0.5) == 1.5);
  CHECK(quantile(std::vector<double>{0, 1, 2, 4}, 1) == 4);
}

}  // namespace oscar::verify
