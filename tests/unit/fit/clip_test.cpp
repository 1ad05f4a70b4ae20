// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "method/solve.hpp"
#include "support/backend.hpp"
#include "support/fit_source.hpp"
#include "support/support.hpp"
#include "support/synthetic.hpp"

namespace oscar {
namespace {

constexpr Windows kWindows{16, 32};

}  // namespace

TEST_CASE("the sample is fixed by its seed, stays behind the windows and within its budget") {
  const auto chunks = test::synthetic_layer({.tokens = 500});
  test::MemoryStream layer(chunks);
  const SampleOptions options{.sample_tokens = 100, .max_sequence_tokens = 300, .query_rows = 80};

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
  SampleOptions other = options;
  other.seed = 5;
  CHECK(sample_layer(layer, kWindows, other)[0].query_positions != sample[0].query_positions);
  CHECK(describe(sample, options) == "300 keys in 1 sequence, 20 queries per head, seed 0");
}

TEST_CASE("scores are those of the codec at each ratio, and near ties prefer less clipping") {
  const auto chunks = test::synthetic_layer({});
  test::MemoryStream layer(chunks);
  const SampleOptions options;
  const auto sample = sample_layer(layer, kWindows, options);
  const auto backend = test::make_test_backend();
  const Transform identity{MatrixStack::identity(16), {}, {}};

  const ClipScores scores =
      score_clip_ratios(sample, identity, identity, {RowCodec{}, RowCodec{}}, false, kWindows, *backend);

  REQUIRE(scores.key.layer.size() == clip_candidates().size());
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
  CHECK(scores.key.layer[4] == doctest::Approx(kl / static_cast<double>(queries)).epsilon(1e-12));
  CHECK(best_clip_ratio({3, 1, 1, 2, 5, 5, 5, 5, 5, 5}) == clip_candidates()[1]);
  CHECK(best_clip_ratio({3, 1.06, 1.04, 1, 5, 5, 5, 5, 5, 5}) == clip_candidates()[2]);
}

TEST_CASE("scores of heads are what their own queries lose, and values are judged beside keys at their heads' ratios") {
  const auto chunks = test::synthetic_layer({});
  test::MemoryStream layer(chunks);
  const auto sample = sample_layer(layer, kWindows, {});
  const auto backend = test::make_test_backend();
  const Transform identity{MatrixStack::identity(16), {}, {}};

  const ClipScores scores =
      score_clip_ratios(sample, identity, identity, {RowCodec{}, RowCodec{}}, true, kWindows, *backend);

  REQUIRE(scores.key.heads.size() == 2);
  const HistoryCodec keys{{}, best_clip_ratios(scores.key.heads)};
  const HistoryCodecs codecs{keys, HistoryCodec{with_ratio({}, clip_candidates()[3])}};
  const QkvView view{heads_view(sample[0].q, "q"), heads_view(sample[0].k, "k"), heads_view(sample[0].v, "v")};
  const auto held = backend->hold({view, sample[0].query_positions, &identity, &identity});
  const auto errors = held->compare({&codecs, 1}, kWindows).front();
  for (std::size_t head = 0; head < 2; ++head) {
    AttentionErrors own = errors[2 * head];
    own.add(errors[2 * head + 1]);
    const auto ratio = std::ranges::find(clip_candidates(), keys.head_clip_ratios[head]);
    CHECK(scores.key.heads[head][static_cast<std::size_t>(ratio - clip_candidates().begin())] ==
          doctest::Approx(own.softmax_kl / static_cast<double>(own.queries)).epsilon(1e-12));
    CHECK(scores.value.heads[head][3] == doctest::Approx(own.output_error / own.output_norm).epsilon(1e-12));
  }
}

TEST_CASE("ratios per head are fitted where they are asked for, the layer's beside them") {
  test::MemorySource source({{0, test::synthetic_layer({})}});
  const auto backend = test::make_test_backend();
  Status status;
  FitOptions options;
  options.recipe = "oscar", options.windows = kWindows;
  const RotationPart layerwise = test::fit_rotations_of(source, options, *backend, status);
  CHECK(layerwise.layers[0].key.head_clip_ratios.empty());
  options.clip_granularity = "head";
  const RotationPart set = test::fit_rotations_of(source, options, *backend, status);
  CHECK(set.layers[0].key.clip_ratio == layerwise.layers[0].key.clip_ratio);
  REQUIRE(set.layers[0].key.head_clip_ratios.size() == 2);
  CHECK(set.layers[0].value.head_clip_ratios.empty());
  const Json& record = set.layers[0].key.scores["clip"];
  for (std::size_t head = 0; head < 2; ++head) {
    const auto scores = record["scores_per_head"][head].get<std::vector<double>>();
    CHECK(set.layers[0].key.head_clip_ratios[head] == best_clip_ratio(scores));
  }
  CHECK(set.recipe["clip_granularity"] == "head");
}

TEST_CASE("ratios per head are refused where nothing is fitted, or a named reader has none") {
  const auto with = [](const char* reader, const char* granularity, const char* clip) {
    FitOptions options;
    options.recipe = "oscar", options.readers = {reader};
    options.clip_granularity = granularity, options.clip = clip;
    return options;
  };
  CHECK_ERROR(plan_parts(with("sglang", "head", "0.9,0.9")), UsageError, "no clip ratios to fit");
  CHECK_ERROR(plan_parts(with("sglang", "row", "auto")), UsageError, "--clip-granularity");
  CHECK_ERROR(plan_parts(with("sglang-v1", "head", "auto")), UsageError, "give readers that can: --for sglang");
  CHECK(plan_parts(with("sglang", "head", "auto")).rotations.at(kRotationsName).key_clip_per_head);
}

TEST_CASE("a joined sample has sequences of all parts in turns, and keeps to the limits of one") {
  const SampleOptions options{.sample_tokens = 500, .max_sequence_tokens = 300, .query_rows = 80};
  std::vector<std::vector<SampledSequence>> parts;
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const auto chunks = test::synthetic_layer({.tokens = 280, .seed = seed});
    test::MemoryStream layer(chunks);
    parts.push_back(sample_layer(layer, kWindows, options));
  }
  const auto second = parts[1];
  const auto joined = join_samples(parts, options);
  REQUIRE(joined.size() == 2);
  CHECK(joined[1].k.data == second[0].k.data);
  // 20 queries of a part, half as many of each of two.
  REQUIRE(second[0].query_positions.size() == 20);
  CHECK(joined[1].q.shape == std::vector<std::int64_t>{10, 4, 16});
  CHECK(joined[1].query_positions[3] == second[0].query_positions[7]);
  CHECK(std::memcmp(joined[1].q.data.data() + 3 * 4 * 16 * 2, second[0].q.data.data() + 7 * 4 * 16 * 2, 4 * 16 * 2) ==
        0);
}

TEST_CASE("a fit without sequences longer than the windows takes the published constants and says so") {
  test::MemorySource source({{0, test::synthetic_layer({.tokens = 40})}});
  const auto backend = test::make_test_backend();
  test::HeardStatus warnings;
  FitOptions options;
  options.recipe = "oscar", options.windows = kWindows;

  const RotationPart set = test::fit_rotations_of(source, options, *backend, warnings);

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
  options.recipe = "oscar", options.clip = "0.97,0.5";
  const RotationPart set = test::fit_rotations_of(source, options, *backend, status);
  CHECK(set.layers[0].key.clip_ratio == 0.97);
  CHECK(set.layers[0].value.clip_ratio == 0.5);
  CHECK(set.value_clip_scalar == 0.5);
  options.clip = "off";
  CHECK(test::fit_rotations_of(source, options, *backend, status).layers[0].key.clip_ratio == 0);
}

}  // namespace oscar
