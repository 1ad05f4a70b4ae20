// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "measure/figures.hpp"
#include "measure/predictions/model_metrics.hpp"

namespace oscar {
namespace {

constexpr std::size_t kPositionBins = 16, kDepthBins = 10;

double sum(std::span<const double> values) { return std::accumulate(values.begin(), values.end(), 0.0); }

/// Mean and its standard error, s / sqrt(n).
struct Mean {
  double value = 0, error = 0;
  explicit Mean(std::span<const double> values) {
    const auto n = static_cast<double>(values.size());
    if (values.empty()) return;
    value = sum(values) / n;
    double squares = 0;
    for (const double x : values) squares += (x - value) * (x - value);
    if (n > 1) error = std::sqrt(squares / n / (n - 1));
  }
};

/// One figure of all positions of all texts.
std::vector<double> joined(const std::vector<TextFigures>& texts, double PositionFigures::*figure) {
  std::vector<double> all;
  for (const TextFigures& text : texts) {
    for (const PositionFigures& position : text) all.push_back(position.*figure);
  }
  return all;
}

double sum(const TextFigures& text, double PositionFigures::*figure) {
  double sum = 0;
  for (const PositionFigures& position : text) sum += position.*figure;
  return sum;
}

std::int64_t same_top(const TextFigures& text) {
  return std::count_if(text.begin(), text.end(), [](const PositionFigures& position) { return position.same_top; });
}

std::vector<PositionBin> bins_of(const std::vector<TextFigures>& texts) {
  std::size_t longest = 0;
  for (const TextFigures& text : texts) longest = std::max(longest, text.size());
  const std::size_t width = (longest + kPositionBins - 1) / kPositionBins;
  std::vector<PositionBin> bins;
  for (std::size_t begin = 0; begin < longest; begin += width) {
    const std::size_t end = std::min(begin + width, longest);
    PositionBin bin{static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end), 0, 0};
    for (const TextFigures& text : texts) {
      for (std::size_t t = begin; t < std::min(end, text.size()); ++t) {
        bin.kld_mean += text[t].kld;
        ++bin.positions;
      }
    }
    bin.kld_mean /= static_cast<double>(bin.positions);
    bins.push_back(bin);
  }
  return bins;
}

void add_intervals(ModelMetrics& m, const std::vector<TextFigures>& texts, const std::vector<AnswerResult>& needles) {
  std::vector<double> positions, nll_change, kld, same;
  for (const TextFigures& text : texts) {
    positions.push_back(static_cast<double>(text.size()));
    nll_change.push_back(sum(text, &PositionFigures::nll_change));
    kld.push_back(sum(text, &PositionFigures::kld));
    same.push_back(static_cast<double>(same_top(text)));
  }
  if (const auto interval = bootstrap(kld, positions)) m.intervals["kld_mean"] = *interval;
  if (const auto interval = bootstrap(same, positions)) m.intervals["same_top"] = *interval;
  if (const auto interval = bootstrap(nll_change, positions)) {
    m.intervals["ppl_ratio"] = {std::exp(interval->low), std::exp(interval->high)};
  }
  std::vector<double> hits;
  for (const AnswerResult& needle : needles) hits.push_back(needle.hit() ? 1 : 0);
  if (const auto interval = bootstrap(hits, std::vector<double>(hits.size(), 1))) m.intervals["retrieval"] = *interval;
}

void add_texts(ModelMetrics& m, const std::vector<TextFigures>& texts) {
  std::vector<double> kld = joined(texts, &PositionFigures::kld);
  const std::vector<double> dp = joined(texts, &PositionFigures::dp);
  m.positions = static_cast<std::int64_t>(kld.size());
  if (kld.empty()) return;
  m.ppl = std::exp(Mean(joined(texts, &PositionFigures::nll)).value);
  const Mean change(joined(texts, &PositionFigures::nll_change));
  m.ppl_ratio = std::exp(change.value);
  m.ppl_ratio_error = m.ppl_ratio * change.error;
  const Mean divergence(kld);
  m.kld_mean = divergence.value, m.kld_error = divergence.error;
  if (std::isfinite(m.kld_mean)) {
    std::sort(kld.begin(), kld.end());
  } else {  // they have no order
    std::ranges::fill(kld, std::numeric_limits<double>::quiet_NaN());
  }
  m.kld_median = quantile(kld, 0.5);
  m.kld_p90 = quantile(kld, 0.9), m.kld_p95 = quantile(kld, 0.95);
  m.kld_p99 = quantile(kld, 0.99), m.kld_p999 = quantile(kld, 0.999);
  m.kld_max = kld.back();
  m.mean_dp = Mean(dp).value;
  m.rms_dp = std::sqrt(std::inner_product(dp.begin(), dp.end(), dp.begin(), 0.0) / static_cast<double>(dp.size()));
  std::int64_t same = 0;
  for (const TextFigures& text : texts) same += same_top(text);
  m.same_top = static_cast<double>(same) / static_cast<double>(m.positions);
  m.kld_by_position = bins_of(texts);
}

void add_needles(ModelMetrics& m, const std::vector<AnswerResult>& needles) {
  m.needles = static_cast<std::int64_t>(needles.size());
  if (needles.empty()) return;
  int asked = 0;
  double nll = 0;
  std::vector<DepthBin> bins(kDepthBins);
  for (const AnswerResult& needle : needles) {
    asked += needle.asked, nll += needle.nll;
    m.needle_hits += needle.hit() ? 1 : 0;
    if (!needle.depth) continue;
    DepthBin& bin = bins[std::min(static_cast<std::size_t>(*needle.depth * kDepthBins), kDepthBins - 1)];
    bin.hits += needle.hit() ? 1 : 0;
    ++bin.needles;
  }
  m.needle_nll = nll / asked;
  m.retrieval = static_cast<double>(m.needle_hits) / static_cast<double>(m.needles);
  for (std::size_t i = 0; i < kDepthBins; ++i) {
    bins[i].depth = {static_cast<double>(i) / kDepthBins, static_cast<double>(i + 1) / kDepthBins};
    if (bins[i].needles > 0) m.retrieval_by_depth.push_back(bins[i]);
  }
}

void add_quotes(ModelMetrics& m, const std::vector<AnswerResult>& quotes) {
  if (quotes.empty()) return;
  QuoteMetrics& q = m.quotes.emplace();
  std::vector<double> found, asked;
  for (const AnswerResult& quote : quotes) {
    found.push_back(quote.found), asked.push_back(quote.asked);
    q.right_to_the_end += quote.hit() ? 1 : 0;
    q.tokens_until_wrong += quote.until_wrong;
    q.nll += quote.nll;
  }
  q.quotes = std::ssize(quotes);
  q.tokens_right = sum(found) / sum(asked);
  q.tokens_until_wrong /= static_cast<double>(q.quotes);
  q.nll /= sum(asked);
  if (const auto interval = bootstrap(found, asked)) m.intervals["quoted_tokens_right"] = *interval;
}

}  // namespace

ModelMetrics model_metrics(const std::vector<TextFigures>& texts, const std::vector<AnswerResult>& needles,
                           const std::vector<AnswerResult>& quotes) {
  ModelMetrics m;
  add_texts(m, texts);
  add_needles(m, needles);
  add_intervals(m, texts, needles);
  add_quotes(m, quotes);
  return m;
}

}  // namespace oscar
