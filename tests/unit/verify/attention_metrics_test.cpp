// SPDX-License-Identifier: MIT
// Attention metrics against an independent numpy oracle on a real dump, and against what must hold for any data.
#include "measure/attention/attention_metrics.hpp"

#include <doctest/doctest.h>

#include <random>

#include "base/threads.hpp"
#include "dump/source.hpp"
#include "measure/peers/baselines.hpp"
#include "method/compose.hpp"
#include "moments/sums.hpp"
#include "support/backend.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

/// Random Q/K/V of one sequence, keys with an outlier channel.
struct RandomSequence {
  std::vector<float> q, k, v;
  std::int64_t tokens;
  explicit RandomSequence(std::int64_t tokens_, unsigned seed = 5) : tokens(tokens_) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    q.resize(static_cast<std::size_t>(tokens) * 2 * 32), k.resize(q.size() / 2), v.resize(q.size() / 2);
    for (auto* rows : {&q, &k, &v}) {
      for (float& x : *rows) x = normal(engine);
    }
    for (std::size_t i = 3; i < k.size(); i += 32) k[i] *= 8;
  }
  [[nodiscard]] QkvView view() const {
    return {heads_view(q, tokens, 2, 32), heads_view(k, tokens, 1, 32), heads_view(v, tokens, 1, 32)};
  }
};

KvSide rotated_side(const MatrixStack& covariance, double clip_ratio, Backend& backend) {
  KvSide side;
  side.transform = std::make_shared<const Transform>(
      Transform{compose(decompose(mean_over_heads(covariance), backend), Composition::kRHPbr), {}, {}});
  side.codec.clip_ratio = clip_ratio;
  return side;
}

/// The recipe "oscar" on one layer, with the published clip ratios.
KvMethod published_method(int layer_id, LayerStream& stream, Backend& backend) {
  const MatrixStack queries = take(stream, Moment::kQqt, backend).mean();
  stream.rewind();
  const MatrixStack values = take_sst(stream, queries, backend).mean();
  stream.rewind();
  KvMethod method{"oscar", MethodKind::kThis, {}, {}};
  method.layers[layer_id] = {queries.dim, rotated_side(queries, kPublishedKeyClip, backend),
                             rotated_side(values, kPublishedValueClip, backend)};
  return method;
}

LayerSums measured(const QkvView& view, const KvMethod& method, std::int64_t stride = 1,
                   Precision precision = Precision::kServing, int layer_id = 0) {
  static const auto backend = test::make_test_backend();
  return measure_attention(view, std::span(&method, 1), layer_id, stride, precision, *backend).front();
}

LayerSums measure_layer(LayerStream& stream, const KvMethod& method, int layer_id) {
  LayerSums sums;
  QkvChunk chunk;
  stream.rewind();
  while (stream.next(chunk)) {
    for (const SequenceRange& range : chunk.sequences) {
      sums.add(measured(chunk.view.tokens(range), method, 1, Precision::kServing, layer_id));
    }
  }
  return sums;
}

}  // namespace

TEST_CASE("softmax KL, output error and logit error of four methods equal the numpy oracle on a real dump") {
  const auto backend = test::make_test_backend();
  Status status;
  const std::filesystem::path golden = test::published_fits().back();
  const auto source = open_dump(golden / "dump", {}, status);
  const Json oracle = read_json(golden / "oracle.json");
  const auto near = [](const Json& value) { return doctest::Approx(value.get<double>()).epsilon(0.001); };
  for (const int id : source->layer_ids()) {
    const auto stream = source->open(id);
    const Json& expected = oracle.at("layer_" + std::to_string(id));
    for (const std::string name : {"naive", "hadamard", "hadamard_clip", "oscar"}) {
      CAPTURE(id);
      CAPTURE(name);
      const KvMethod method =
          name == "oscar" ? published_method(id, *stream, *backend) : make_baseline(name, {{id, 128}}, {}, 0);
      const AttentionMetrics metrics = measure_layer(*stream, method, id).all.metrics();
      CHECK(metrics.softmax_kl == near(expected.at(name).at("softmax_kl")));
      CHECK(metrics.output_rel_error == near(expected.at(name).at("output_rel_error")));
      CHECK(metrics.logit_nmse == near(expected.at(name).at("logit_nmse")));
    }
  }
}

TEST_CASE("methods that are measured together have the sums that each has alone, in windows of its own") {
  const RandomSequence sequence(200);
  const auto backend = test::make_test_backend();
  const std::vector<LayerShape> layers{{0, 32}};
  const std::vector<KvMethod> methods{make_baseline("naive", layers, {4, 16}, 0), make_baseline("bf16", layers, {}, 0),
                                      make_baseline("hadamard_clip", layers, {0, 40}, 0)};
  const auto together = measure_attention(sequence.view(), methods, 0, 3, Precision::kServing, *backend);
  REQUIRE(together.size() == methods.size());
  for (std::size_t m = 0; m < methods.size(); ++m) {
    const auto alone = measured(sequence.view(), methods[m], 3);
    for (const auto sum : {&AttentionErrors::softmax_kl, &AttentionErrors::output_error, &AttentionErrors::logit_error,
                           &AttentionErrors::needle_mass, &AttentionErrors::needle_kept}) {
      CHECK(together[m].all.both.*sum == alone.all.both.*sum);
    }
    CHECK(together[m].all.k_only.error == alone.all.k_only.error);
    CHECK(together[m].all.rows.value_noise == alone.all.rows.value_noise);
  }
  CHECK(together[0].all.both.needle_mass != together[2].all.both.needle_mass);
}

TEST_CASE("nothing is lost without quantisation, little by rounding, and K-only and V-only errors explain the whole") {
  const RandomSequence sequence(200);
  const std::vector<LayerShape> layers{{0, 32}};
  const auto measure = [&](const char* name, Precision precision) {
    return measured(sequence.view(), make_baseline(name, layers, {4, 16}, 0), 1, precision).all.metrics();
  };
  const AttentionMetrics exact = measure("bf16", Precision::kExact);
  CHECK(exact.output_rel_error < 1e-12);
  CHECK(exact.softmax_kl < 1e-9);
  CHECK(exact.output_cosine == doctest::Approx(1).epsilon(1e-9));
  CHECK(*exact.needle_mass_kept == doctest::Approx(1).epsilon(1e-6));
  CHECK_FALSE(exact.k_sqnr_db.has_value());
  const AttentionMetrics rounded = measure("bf16", Precision::kServing);
  CHECK(rounded.output_rel_error < 1e-4);
  CHECK(*rounded.k_sqnr_db > 45);
  const AttentionMetrics naive = measure("naive", Precision::kServing);
  CHECK(naive.output_rel_error > 100 * rounded.output_rel_error);
  CHECK(naive.output_rel_error_k_only + naive.output_rel_error_v_only ==
        doctest::Approx(naive.output_rel_error).epsilon(0.3).scale(0));
  CHECK(naive.softmax_kl_p99 > naive.softmax_kl);
  CHECK(naive.output_cosine < naive.output_cosine_v_only);
  CHECK(naive.output_cosine_v_only < rounded.output_cosine);
  CHECK(*naive.needle_mass_kept < *rounded.needle_mass_kept);
  // The outlier channel sets the scale of the keys; the rotation spreads it.
  CHECK(*measure("hadamard", Precision::kServing).v_sqnr_db == doctest::Approx(*naive.v_sqnr_db).epsilon(0.1));
  CHECK(measure("hadamard", Precision::kServing).softmax_kl < naive.softmax_kl);
}

TEST_CASE("figures are ratios of sums, and means over queries") {
  AttentionSums sums;
  CHECK_FALSE(sums.metrics().needle_mass_kept.has_value());
  sums.both = {
      .output_error = 2, .output_norm = 8, .output_cosine = 9, .needle_mass = 4, .needle_kept = 3, .queries = 10};
  sums.k_only = {.error = 1, .cosine = 9.5};
  sums.v_only = {.error = 0.5, .cosine = 10};
  const AttentionMetrics m = sums.metrics();
  CHECK(m.output_rel_error == 0.25);
  CHECK(m.output_rel_error_k_only == 0.125);
  CHECK(m.output_rel_error_v_only == 0.0625);
  CHECK(m.output_cosine == doctest::Approx(0.9));
  CHECK(m.output_cosine_k_only == doctest::Approx(0.95));
  CHECK(m.output_cosine_v_only == 1);
  CHECK(*m.needle_mass_kept == 0.75);
}

TEST_CASE("attention that is no number keeps no needles, and its KL is no number") {
  RandomSequence sequence(40);
  sequence.k[10 * 32 + 3] = 3.4e38F;  // bfloat16 rounds it to infinity
  const LayerSums sums = measured(sequence.view(), make_baseline("naive", {{0, 32}}, {4, 4}, 0));
  CHECK(std::isnan(sums.all.both.needle_kept));
  CHECK(std::isnan(sums.all.both.softmax_kl));
  CHECK(std::isnan(sums.all.metrics().softmax_kl_p99));
}

TEST_CASE("the figures of a head are those of a layer that has it alone, and the layer's are made of them") {
  const RandomSequence sequence(150);
  const KvMethod naive = make_baseline("naive", {{0, 32}}, {4, 16}, 0);
  const LayerSums both = measured(sequence.view(), naive, 2);
  REQUIRE(both.heads.size() == 2);
  double kl = 0;
  for (std::size_t h = 0; h < 2; ++h) {
    std::vector<float> q;
    for (std::size_t row = h; row < sequence.q.size() / 32; row += 2) {
      const auto begin = sequence.q.begin() + static_cast<std::ptrdiff_t>(row * 32);
      q.insert(q.end(), begin, begin + 32);
    }
    QkvView alone = sequence.view();
    alone.q = heads_view(q, sequence.tokens, 1, 32);
    const AttentionMetrics head = both.heads[h].metrics(), expected = measured(alone, naive, 2).all.metrics();
    CHECK(head.softmax_kl == expected.softmax_kl);
    CHECK(head.softmax_kl_p99 == expected.softmax_kl_p99);
    CHECK(head.output_rel_error_k_only == expected.output_rel_error_k_only);
    CHECK(head.output_cosine_v_only == expected.output_cosine_v_only);
    CHECK(head.needle_mass_kept == expected.needle_mass_kept);
    CHECK(*head.needle_mass_kept < 1);
    CHECK(head.k_sqnr_db == expected.k_sqnr_db);
    CHECK(head.v_sqnr_db == expected.v_sqnr_db);
    kl += head.softmax_kl / 2;
  }
  CHECK(both.all.metrics().softmax_kl == doctest::Approx(kl));
  CHECK(both.heads[0].metrics().softmax_kl != both.heads[1].metrics().softmax_kl);
}

TEST_CASE("K-only leaves the values alone, V-only the keys") {
  const KvMethod naive = make_baseline("naive", {{0, 32}}, {4, 16}, 0);
  for (const bool keys_survive : {true, false}) {
    RandomSequence sequence(120);
    auto& exact_rows = keys_survive ? sequence.k : sequence.v;  // two levels, which the codec keeps exactly
    for (std::size_t i = 0; i < exact_rows.size(); ++i) exact_rows[i] = (i * i / 7) % 2 == 0 ? 0.0F : 1.0F;
    const AttentionMetrics m = measured(sequence.view(), naive, 1, Precision::kExact).all.metrics();
    CHECK(m.output_rel_error > 1e-3);
    CHECK((keys_survive ? m.output_rel_error_k_only : m.output_rel_error_v_only) < 1e-9);
    CHECK((keys_survive ? m.output_rel_error_v_only : m.output_rel_error_k_only) ==
          doctest::Approx(m.output_rel_error).epsilon(1e-6));
  }
}

TEST_CASE("a sequence inside the windows is not quantised") {
  const RandomSequence sequence(60);
  const KvMethod naive = make_baseline("naive", {{0, 32}}, {10, 60}, 0);
  const auto metrics = measured(sequence.view(), naive, 1, Precision::kExact).all.metrics();
  CHECK(metrics.softmax_kl < 1e-9);
  CHECK_FALSE(metrics.k_sqnr_db.has_value());
}

TEST_CASE("signal to noise counts the tokens outside the windows only") {
  RandomSequence sequence(100);
  const Windows windows{10, 20};
  for (std::size_t i = 0; i < sequence.k.size(); ++i) {
    const std::size_t token = i / 32;
    // Two levels, which the codec keeps exactly, but for one token whose values it cannot keep.
    if (token >= 10 && token < 80) sequence.k[i] = i % 2 == 0 ? 0.0F : 1.0F;
  }
  const KvMethod naive = make_baseline("naive", {{0, 32}}, windows, 0);
  const auto sums = [&] { return measured(sequence.view(), naive, 1, Precision::kExact).all; };
  CHECK(sums().rows.key_noise == 0);
  CHECK(sums().rows.key_signal == 70 * 16);
  sequence.k[10 * 32] = 0.5F;
  CHECK(sums().rows.key_noise == doctest::Approx(0.25 / 9));  // 0.5 becomes 2/3 or 1/3
}

TEST_CASE("query heads have the signal to noise of the KV head that they read") {
  const RandomSequence sequence(100);
  std::vector<float> k(100 * 2 * 32);  // KV head 0 as in `sequence`, head 1 of two levels, which the codec keeps
  for (std::size_t i = 0; i < k.size(); ++i) {
    k[i] = i / 32 % 2 == 0 ? sequence.k[i / 64 * 32 + i % 32] : static_cast<float>(i % 2);
  }
  std::vector<float> q(sequence.q);
  q.insert(q.end(), sequence.q.begin(), sequence.q.end());
  const HeadsView rows = heads_view(k, 100, 2, 32);
  const KvMethod naive = make_baseline("naive", {{0, 32}}, {4, 16}, 0);

  const LayerSums found = measured({heads_view(q, 100, 4, 32), rows, rows}, naive, 1, Precision::kExact);
  const LayerSums alone =
      measured({sequence.view().q, sequence.view().k, sequence.view().k}, naive, 1, Precision::kExact);

  const auto expected = alone.all.metrics().k_sqnr_db;
  REQUIRE(expected.has_value());
  REQUIRE(found.heads.size() == 4);
  for (const std::size_t h : {0U, 1U}) {
    CHECK(found.heads[h].metrics().k_sqnr_db == expected);
    CHECK(found.heads[h].metrics().v_sqnr_db == expected);
    CHECK_FALSE(found.heads[h + 2].metrics().k_sqnr_db.has_value());  // without noise
  }
  CHECK(*found.all.metrics().k_sqnr_db > *expected);
}

TEST_CASE("queries are sampled from the end, evenly") {
  CHECK(sampled_positions(5, 1) == std::vector<std::int64_t>{0, 1, 2, 3, 4});
  CHECK(sampled_positions(7, 3) == std::vector<std::int64_t>{0, 3, 6});
  CHECK(sampled_positions(2, 5) == std::vector<std::int64_t>{1});
  const RandomSequence sequence(300);
  const KvMethod naive = make_baseline("naive", {{0, 32}}, {4, 16}, 0);
  const auto all = measured(sequence.view(), naive).all.metrics();
  const auto some = measured(sequence.view(), naive, 3).all.metrics();
  CHECK(some.softmax_kl == doctest::Approx(all.softmax_kl).epsilon(0.1).scale(0));
  CHECK(some.softmax_kl != all.softmax_kl);
}

TEST_CASE("metrics do not depend on the number of threads") {
  const RandomSequence sequence(150);
  const KvMethod method = make_baseline("hadamard_clip", {{0, 32}}, {4, 16}, 8);
  std::vector<AttentionMetrics> found;
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    found.push_back(measured(sequence.view(), method).all.metrics());
  }
  set_num_threads(0);
  CHECK(found[0].softmax_kl == found[1].softmax_kl);
  CHECK(found[0].output_rel_error == found[1].output_rel_error);
  CHECK(found[0].k_sqnr_db == found[1].k_sqnr_db);
}

TEST_CASE("quantiles come from logarithmic bins of one per cent") {
  LogHistogram low, high;
  std::vector<double> values;
  for (int i = 1; i <= 500; ++i) values.push_back(i * 1e-3);
  low.add(values);
  for (double& x : values) x += 0.5;
  high.add(values);
  low.add(high);
  CHECK(low.quantile(0.99) == doctest::Approx(0.990).epsilon(0.006));
  CHECK(low.quantile(0.5) == doctest::Approx(0.500).epsilon(0.006));
  CHECK(low.quantile(1.0) == doctest::Approx(1.0).epsilon(0.006));
  LogHistogram zeros;
  CHECK(zeros.quantile(0.5) == 0);
  zeros.add(std::vector<double>{0.0, 1e-15, 1e9});
  CHECK(zeros.quantile(0.5) == 0);
  CHECK(zeros.quantile(1.0) == doctest::Approx(1e4).epsilon(0.006));
}

}  // namespace oscar
