// SPDX-License-Identifier: MIT
#include "fit/clip_fit.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "fit/fit.hpp"
#include "support/backend.hpp"
#include "support/support.hpp"
#include "support/synthetic.hpp"

namespace oscar {
namespace {

constexpr Windows kWindows{16, 32};

/// Collects warnings.
struct Warnings : Status {
  std::string text;
  void warning(const std::string& line) override { text += line + "\n"; }
};

}  // namespace

TEST_CASE("the sample is fixed by its seed, stays behind the windows and within its budget") {
  const auto chunks = test::synthetic_layer({.tokens = 500});
  test::MemoryStream layer(chunks);
  const ClipFitOptions options{.sample_tokens = 100, .max_sequence_tokens = 300, .query_rows = 80};

  const auto sample = sample_layer(layer, kWindows, options);
  const auto again = sample_layer(layer, kWindows, options);

  REQUIRE(sample.size() == 1);
  CHECK(sample[0].k.shape == std::vector<std::int64_t>{300, 2, 16});
  CHECK(sample[0].q.shape == std::vector<std::int64_t>{20, 4, 16});
  CHECK(std::is_sorted(sample[0].query_positions.begin(), sample[0].query_positions.end()));
  CHECK(sample[0].query_positions.front() >= 48);
  CHECK(sample[0].query_positions.back() < 300);
  CHECK(sample[0].query_positions == again[0].query_positions);
  CHECK(sample[0].q.data == again[0].q.data);
  ClipFitOptions other = options;
  other.seed = 5;
  CHECK(sample_layer(layer, kWindows, other)[0].query_positions != sample[0].query_positions);
  CHECK(describe(sample, options) == "300 keys in 1 sequences, 20 queries per head, seed 0");
}

TEST_CASE("scores are those of the codec at each ratio, and ties prefer less clipping") {
  const auto chunks = test::synthetic_layer({});
  test::MemoryStream layer(chunks);
  const ClipFitOptions options;
  const auto sample = sample_layer(layer, kWindows, options);
  const auto backend = test::make_test_backend();
  const Transform identity{MatrixStack::identity(16), {}, {}};

  const ClipScores scores = score_clip_ratios(sample, identity, identity, {RowCodec{}, RowCodec{}}, kWindows, *backend);

  REQUIRE(scores.key.size() == clip_candidates().size());
  const QkvView view{heads_view(sample[0].q, "q"), heads_view(sample[0].k, "k"), heads_view(sample[0].v, "v")};
  RowCodec codec;
  codec.clip_ratio = clip_candidates()[4];
  const HistoryCodecs codecs{codec, {}};
  double kl = 0;
  std::int64_t queries = 0;
  const auto held = backend->hold({view, sample[0].query_positions, &identity, &identity});
  const auto errors = held->compare({&codecs, 1}, kWindows);
  for (const AttentionErrors& head : errors.front()) {
    kl += head.softmax_kl;
    queries += head.queries;
  }
  CHECK(scores.key[4] == doctest::Approx(kl / static_cast<double>(queries)).epsilon(1e-12));
  CHECK(best_clip_ratio({3, 1, 1, 2, 5, 5, 5, 5, 5, 5}) == clip_candidates()[1]);
}

TEST_CASE("a fit without sequences longer than the windows takes the published constants and says so") {
  test::MemorySource source({{0, test::synthetic_layer({.tokens = 40})}});
  const auto backend = test::make_test_backend();
  Warnings warnings;
  FitOptions options;
  options.windows = kWindows;

  const RotationSet set = fit(source, options, *backend, warnings).set;

  CHECK(set.layers[0].key.clip_ratio == 0.96);
  CHECK(set.layers[0].value.clip_ratio == 0.92);
  CHECK(set.key_clip_scalar == 0.96);
  CHECK(warnings.text.find("published constants") != std::string::npos);
}

TEST_CASE("fixed ratios and off are taken as given") {
  test::MemorySource source({{0, test::synthetic_layer({})}});
  const auto backend = test::make_test_backend();
  Status status;
  FitOptions options;
  options.clip = "0.97,0.5";
  const RotationSet set = fit(source, options, *backend, status).set;
  CHECK(set.layers[0].key.clip_ratio == 0.97);
  CHECK(set.layers[0].value.clip_ratio == 0.5);
  CHECK(set.value_clip_scalar == 0.5);
  options.clip = "off";
  CHECK(fit(source, options, *backend, status).set.layers[0].key.clip_ratio == 0);
}

}  // namespace oscar
