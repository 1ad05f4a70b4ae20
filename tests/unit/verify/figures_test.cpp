// SPDX-License-Identifier: MIT
// Figures of predictions, their quantiles and intervals, against values by hand and plain loops.
#include "measure/figures.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "measure/predictions/model_metrics.hpp"
#include "unit/verify/text_figures.hpp"

namespace oscar::verify {
namespace {

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
  CHECK_FALSE(bootstrap(std::vector<double>{1, NAN}, std::vector<double>{1, 1}).has_value());
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

TEST_CASE("where a position's KL is no number, none of its figures is") {
  TextFigures broken = small_text();
  broken[0].kld = NAN;
  const ModelMetrics m = model_metrics({small_text(), broken}, {});
  for (const double figure : {m.kld_mean, m.kld_median, m.kld_p999, m.kld_max}) CHECK(std::isnan(figure));
  CHECK_FALSE(m.intervals.contains("kld_mean"));
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
  const TextFigures figures{{.nll = 1, .right = true}, {.nll = 4}, {.nll = 2, .right = true}};
  const AnswerResult all = read_answer(0.5, figures);
  CHECK(*all.depth == 0.5);
  CHECK(all.found == 2);
  CHECK(all.asked == 3);
  CHECK(all.until_wrong == 1);
  CHECK(all.nll == 7);
  CHECK_FALSE(all.hit());
  const AnswerResult first = read_answer({}, std::span(figures).first(1));
  CHECK(first.hit());
  CHECK(first.until_wrong == 1);
  CHECK(first.nll == 1);
  CHECK(read_answer({}, std::span(figures).subspan(1)).until_wrong == 0);
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
