// SPDX-License-Identifier: MIT
// Model metrics by hand on a decoder of four words.
#include "measure/predictions/model_metrics.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "measure/peers/baselines.hpp"
#include "support/backend.hpp"
#include "support/support.hpp"
#include "unit/verify/text_figures.hpp"

namespace oscar {
namespace {

constexpr int kVocab = 4;

/// Row t prefers the token (t + token) % 4.
std::vector<float> rows_of(const TokenSequence& tokens) {
  std::vector<float> rows(tokens.size() * kVocab);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const auto favourite = (t + static_cast<std::size_t>(tokens[t])) % kVocab;
    for (std::size_t i = 0; i < kVocab; ++i)
      rows[t * kVocab + i] = i == favourite ? 0.5F : 0.02F * static_cast<float>(i);
  }
  return rows;
}

class FourWordsStates : public FinalStates {
 public:
  explicit FourWordsStates(std::vector<std::vector<float>> logits) : logits_(std::move(logits)) {}
  void logits(std::size_t sequence, std::span<float> out) const override {
    std::ranges::copy(logits_[sequence], out.begin());
  }
  void compare(std::size_t sequence, std::int64_t first, std::span<const std::int32_t> next,
               std::span<const FinalStates* const> others,
               std::span<const std::span<PositionFigures>> out) const override {
    const auto row = [&](const FinalStates* of, std::size_t i) {
      const auto at = (static_cast<std::size_t>(first) + i) * kVocab;
      return std::span(static_cast<const FourWordsStates*>(of)->logits_[sequence]).subspan(at, kVocab);
    };
    for (std::size_t run = 0; run < others.size(); ++run) {
      for (std::size_t i = 0; i < next.size(); ++i) {
        out[run][i] = test::plain_figures(row(this, i), row(others[run], i), static_cast<std::size_t>(next[i]));
      }
    }
  }
  [[nodiscard]] int concurrent_calls() const override { return 0; }

 private:
  std::vector<std::vector<float>> logits_;
};

/// One layer; its logits are what attention puts out, and exact attention puts out the values.
class FourWordsPass : public ModelPass {
 public:
  explicit FourWordsPass(std::span<const TokenSequence> sequences) : sequences_(sequences) {}
  void save(const std::filesystem::path&) const override {}
  void restore(const std::filesystem::path&) override {}
  [[nodiscard]] int layer() const override { return layer_; }
  void step(const AttentionHook& attention, bool) override {
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      const std::vector<float> rows = rows_of(sequences_[s]);
      const HeadsView view = heads_view(rows, static_cast<std::int64_t>(sequences_[s].size()), 1, kVocab);
      outs_.push_back(rows);
      if (attention && !attention(0, s, {view, view, view}, outs_.back())) outs_.back() = rows;
    }
    ++layer_;
  }
  void capture(const CaptureHook&, bool) override { OSCAR_CHECK(false); }
  void wait_until_ready() override {}
  [[nodiscard]] std::unique_ptr<FinalStates> final_states() override {
    return std::make_unique<FourWordsStates>(std::move(outs_));
  }

 private:
  std::span<const TokenSequence> sequences_;
  std::vector<std::vector<float>> outs_;
  int layer_ = 0;
};

/// head_dim = vocabulary = 4.
class FourWords : public ModelRunner {
 public:
  FourWords() { config_.vocab_size = kVocab, config_.num_layers = 1, config_.blocks.resize(1); }
  [[nodiscard]] const ModelConfig& config() const override { return config_; }
  [[nodiscard]] ScoreRule score_rule(int) const override { return {}; }
  [[nodiscard]] std::string description() const override { return "four words"; }
  [[nodiscard]] std::shared_ptr<std::byte> host_memory(std::size_t bytes) const override {
    return {new std::byte[bytes], std::default_delete<std::byte[]>()};
  }
  [[nodiscard]] bool keeps_host_memory() const override { return false; }
  [[nodiscard]] std::unique_ptr<ModelPass> begin(std::span<const TokenSequence> sequences, const PassOptions&,
                                                 Status&) override {
    return std::make_unique<FourWordsPass>(sequences);
  }
  void history_gradients(const HistoryQuestion&, const HistoryHook&, Status&) override {
    throw BackendUnavailable("four words have no gradients", "", "");
  }

 private:
  ModelConfig config_;
};

std::vector<double> log_softmax(const float* row) {
  double sum = 0;
  for (int i = 0; i < kVocab; ++i) sum += std::exp(double{row[i]});
  std::vector<double> logs;
  for (int i = 0; i < kVocab; ++i) logs.push_back(row[i] - std::log(sum));
  return logs;
}

std::vector<ModelMetrics> measured(const ModelData& data, const std::vector<KvMethod>& methods) {
  FourWords runner;
  const auto backend = test::make_test_backend();
  Status silent;
  return measure_model(runner, data, methods, Precision::kServing, *backend, silent);
}

const KvMethod& naive() {
  static const KvMethod method = make_baseline("naive", {{0, kVocab}}, {0, 1}, 0);
  return method;
}

const KvMethod& exact() {
  static const KvMethod method = make_baseline("bf16", {{0, kVocab}}, {}, 0);
  return method;
}

/// What attention makes of a text where rows are stored by naive().
std::vector<float> by_naive(const TokenSequence& text) {
  static const auto backend = test::make_test_backend();
  const std::vector<float> rows = rows_of(text);
  const HeadsView view = heads_view(rows, std::ssize(text), 1, kVocab);
  std::vector<float> out(rows.size());
  const KvLayer& layer = naive().layer(0);
  backend->hold(layer.hold({view, view, view}, {}, Precision::kServing))->attend(layer.codecs(), {0, 1}, out);
  return out;
}

ModelData small_data() {
  TokenSequence longer;
  for (int t = 0; t < 40; ++t) longer.push_back(t * t / 3 % kVocab);
  return {{{0, 1, 2, 0, 3, 1}, {2, 2}, longer}, {{0, 0, 1, 3, 2}, {0, 0, 1, 3, 1}, {0, 0, 1, 0, 1}}, {3, 3, 3}};
}

}  // namespace

TEST_CASE("figures of a decoder of four words equal those by hand") {
  const ModelData data = small_data();

  const auto metrics = measured(data, {exact(), naive()});

  double nll = 0, exact_nll = 0, kld = 0, same = 0;
  std::vector<double> kls;
  for (const TokenSequence& text : data.texts) {
    const std::vector<float> rows = rows_of(text), out = by_naive(text);
    for (std::size_t t = 0; t + 1 < text.size(); ++t) {
      const auto p = log_softmax(rows.data() + t * kVocab);
      const auto q = log_softmax(out.data() + t * kVocab);
      double kl = 0;
      for (std::size_t i = 0; i < kVocab; ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
      kld += kl, kls.push_back(kl);
      nll -= q[static_cast<std::size_t>(text[t + 1])], exact_nll -= p[static_cast<std::size_t>(text[t + 1])];
      same += (std::max_element(p.begin(), p.end()) - p.begin()) == (std::max_element(q.begin(), q.end()) - q.begin());
    }
  }
  const double n = 5 + 1 + 39;
  CHECK(metrics[0].positions == 45);
  CHECK(metrics[0].ppl == doctest::Approx(std::exp(exact_nll / n)));
  CHECK(metrics[0].ppl_ratio == 1);
  CHECK(metrics[0].kld_mean == doctest::Approx(0));
  CHECK(metrics[0].same_top == 1);
  CHECK(metrics[1].ppl == doctest::Approx(std::exp(nll / n)));
  CHECK(metrics[1].ppl_ratio == doctest::Approx(std::exp((nll - exact_nll) / n)));
  CHECK(metrics[1].kld_mean == doctest::Approx(kld / n));
  std::sort(kls.begin(), kls.end());
  CHECK(metrics[1].kld_p99 == doctest::Approx(0.44 * kls[43] + 0.56 * kls[44]));  // 0.99 of the way from 0 to 44
  CHECK(metrics[1].kld_max == doctest::Approx(kls.back()));
  CHECK(metrics[1].same_top == doctest::Approx(same / n));
  CHECK(metrics[1].same_top < 1);
}

TEST_CASE("a needle counts if every token of its answer but the last is the most likely one") {
  // Row 1 of {0, 0, 1, …} prefers 1; row 2 prefers 3: the first two needles hit whatever their last token, the third
  // misses.
  const ModelData data = small_data();
  const auto metrics = measured(data, {exact()});
  CHECK(metrics[0].needle_hits == 2);
  CHECK(metrics[0].needles == 3);
  CHECK(*metrics[0].retrieval == doctest::Approx(2.0 / 3));
  // Read as quotations, the same answers count to their last token.
  CHECK_FALSE(metrics[0].quotes.has_value());
  const auto of_quotes = measured({.quotes = data.needles, .quote_lengths = data.answer_lengths}, {exact()});
  REQUIRE(of_quotes[0].quotes.has_value());
  CHECK(of_quotes[0].quotes->quotes == 3);
  CHECK(of_quotes[0].needles == 0);
  CHECK(metrics[0].retrieval_by_depth.empty());  // the answers stand nowhere in the prompts
}

TEST_CASE("needles of a method are those that its attention finds, although the last layer sees few queries") {
  ModelData data;
  std::int64_t hits = 0;
  for (int i = 0; i < 64; ++i) {
    TokenSequence needle;
    for (int t = 0; t < 12; ++t) needle.push_back((t * t + i * t / 3 + i) / 2 % kVocab);
    const std::vector<float> out = by_naive(needle);
    const auto row = out.begin() + 9 * kVocab;
    hits += std::max_element(row, row + kVocab) - row == needle[10] ? 1 : 0;
    data.needles.push_back(std::move(needle));
    data.answer_lengths.push_back(2);
  }
  const auto metrics = measured(data, {naive()});
  CHECK(hits > 5);
  CHECK(metrics[0].needle_hits == hits);
}

TEST_CASE("sequences and answers that cannot be measured are refused") {
  ModelData data = small_data();
  data.texts.push_back({1});
  CHECK_ERROR(check_model_data(data), DataError, "evaluation sequence 3");
  data = small_data();
  data.answer_lengths.pop_back();
  CHECK_ERROR(check_model_data(data), DataError, "3 needles, but 2 answer lengths");
  data = small_data();
  data.answer_lengths[1] = 5;
  CHECK_ERROR(check_model_data(data), DataError, "needle 1");
  data = small_data();
  data.quotes = {{1, 2, 1}};
  CHECK_ERROR(check_model_data(data), DataError, "1 quotation, but 0 answer lengths");
  data.quote_lengths = {3};
  CHECK_ERROR(check_model_data(data), DataError, "quotation 0");
}

}  // namespace oscar
