// SPDX-License-Identifier: MIT
#include "fit/search.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "fit/layer_data.hpp"
#include "support/backend.hpp"
#include "support/memory_source.hpp"
#include "support/support.hpp"
#include "support/synthetic.hpp"

namespace oscar {
namespace {

Scored scored(const std::string& name, std::vector<AttentionScore> layers, std::optional<ModelScore> model = {}) {
  return {.name = name, .candidate_of_layer = {}, .layers = std::move(layers), .seconds = 0, .model = model};
}

/// Layers of some sequences; of three the last is held out.
test::MemorySource equal_sequences(std::int64_t count, std::int64_t tokens) {
  std::map<int, std::vector<test::MemoryChunk>> layers;
  for (const int id : {2, 5}) {
    layers[id] = test::synthetic_layer({.tokens = count * tokens, .seed = static_cast<std::uint64_t>(id)});
    layers[id][0].sequences.clear();
    for (std::int64_t i = 0; i < count; ++i) layers[id][0].sequences.push_back({i * tokens, (i + 1) * tokens});
  }
  return test::MemorySource(std::move(layers));
}

FitOptions search_options() {
  FitOptions options;
  options.recipe = "auto", options.target = "any", options.windows = {4, 16};
  return options;
}

}  // namespace

TEST_CASE("a search records every score and fits its choice on everything") {
  test::MemorySource source = equal_sequences(3, 200);
  const auto backend = test::make_test_backend();
  Status status;
  const RotationPart set = fit(source, search_options(), *backend, status).set;
  const Json& search = set.recipe["search"];
  CHECK(set.recipe["name"] == "auto");
  CHECK(search["candidates"].size() >= search_candidates(search_options()).size());
  CHECK(search["held_out"].get<std::string>().find("200 keys in 1 sequence,") == 0);
  double lowest = 1e9, chosen = 0;
  for (const Json& each : search["candidates"]) {
    lowest = std::min(lowest, each["softmax_kl"].get<double>());
    if (each["name"] == search["choice"]) chosen = each["softmax_kl"];
  }
  CHECK(chosen <= 1.1 * lowest);
  REQUIRE(set.layers.size() == 2);
  for (const LayerRotation& layer : set.layers) {
    const std::string name = layer.key.scores["search"]["choice"];
    CHECK(layer.key.scores["search"]["candidates"].contains(name));
  }
  // The same recipe by its own name, on all the data, has the same transforms.
  for (const Candidate& candidate : search_candidates(search_options())) {
    if (candidate.name != search["choice"]) continue;
    const RotationPart plain = fit(source, candidate.options, *backend, status).set;
    // But for the order of sums: those of the two parts of the data are added up.
    const auto &alone = plain.layers[1].key.rotation.data, &chosen_data = set.layers[1].key.rotation.data;
    for (std::size_t i = 0; i < alone.size(); ++i) CHECK(std::abs(alone[i] - chosen_data[i]) < 1e-5);
    CHECK(plain.key_codec == set.key_codec);
  }
}

TEST_CASE("a model judges six finalists at most, and what it prefers is chosen") {
  test::MemorySource source = equal_sequences(3, 200);
  const auto backend = test::make_test_backend();
  Status status;
  std::string preferred;
  const ModelJudge judge = [&](std::span<const RotationPart> sets) {
    CHECK(sets.size() == 6);
    std::vector<ModelScore> scores(sets.size(), ModelScore{1, 1});
    scores[4].kld = 0.1;
    preferred = sets[4].recipe["name"];
    CHECK(sets[4].layers.size() == 2);
    return scores;
  };
  const RotationPart set = fit(source, search_options(), *backend, status, {.judge = judge}).set;
  CHECK(set.recipe["search"]["choice"] == preferred);
}

TEST_CASE("a search needs sequences to hold out, longer than the windows, and tokens to fit on") {
  const auto backend = test::make_test_backend();
  Status status;
  const auto search = [&](test::MemorySource source) { (void)fit(source, search_options(), *backend, status); };
  CHECK_ERROR(search(equal_sequences(1, 200)), TooLittleData, "sequence");
  CHECK_ERROR(search(equal_sequences(3, 20)), TooLittleData,
              "no held-out sequence is longer than the windows (20 tokens)");
  CHECK_ERROR(search(equal_sequences(3, 25)), TooLittleData, "50 tokens to fit on");
  CHECK_ERROR(search(equal_sequences(3, 25)), TooLittleData, "give at least 64 tokens");
}

TEST_CASE("every third sequence is held out, or the last of two") {
  std::string held_out;
  for (std::size_t i = 0; i < 7; ++i) held_out += HeldOutSplit(7).held_out(i) ? "x" : ".";
  CHECK(held_out == "..x..x.");
  CHECK_FALSE(HeldOutSplit(2).held_out(0));
  CHECK(HeldOutSplit(2).held_out(1));
  CHECK_ERROR(HeldOutSplit(1), DataError, "only one sequence");
}

TEST_CASE("candidates are what the target can serve") {
  const auto names = [](const std::string& target) {
    FitOptions options;
    options.recipe = "auto", options.target = target;
    std::vector<std::string> all;
    for (const Candidate& candidate : search_candidates(options)) all.push_back(candidate.name);
    return all;
  };
  const auto has = [](const std::vector<std::string>& all, const std::string& part) {
    return std::any_of(all.begin(), all.end(), [&](const std::string& name) { return name.find(part) != name.npos; });
  };
  CHECK(names("sglang-v1") == std::vector<std::string>{"oscar, minmax 4,4", "hadamard, minmax 4,4"});
  CHECK(has(names("sglang-v3"), "stretch fisher centred, minmax 4,4"));
  CHECK(names("any") == names("sglang-v3"));
  FitOptions impossible;
  impossible.target = "llamacpp", impossible.codec = "lloyd-max";
  CHECK_ERROR(search_candidates(impossible), UsageError, "--target any");
}

TEST_CASE("the choice goes by the model's KL, then by its probes") {
  const std::vector<AttentionScore> any{{1, 1}};
  const std::vector<Scored> judged{scored("best by attention, not judged", {{0.1, 0.1}}),
                                   scored("lowest KL", any, ModelScore{0.0100, 0.80}),
                                   scored("close, finds more", any, ModelScore{0.0109, 0.90}),
                                   scored("finds most, too far", any, ModelScore{0.0112, 1.00})};
  CHECK(choose(judged).index == 2);
  CHECK(choose(judged).reason.find("2 candidates within 10 %") != std::string::npos);
  std::vector<Scored> tie = judged;
  tie[2].model->probe = 0.80;
  CHECK(choose(tie).index == 1);
  std::vector<Scored> chance = judged;
  chance[2].model->probe_error = 0.11;  // 80 % could as well be 90 %
  CHECK(choose(chance).index == 1);
  CHECK(choose(chance).reason.find("2 find as many probes") != std::string::npos);
  std::vector<Scored> alone = judged;  // nobody was asked for probes
  for (Scored& each : alone) {
    if (each.model) each.model = ModelScore{3 * each.model->kld, std::numeric_limits<double>::quiet_NaN()};
  }
  alone[2].model->kld = 0.0100;
  CHECK(choose(alone).index == 2);
  CHECK(choose(alone).reason.find("the only one within 10 %") != std::string::npos);
}

TEST_CASE("without a model the choice goes by softmax KL, then by output error") {
  CHECK(choose({scored("a", {{0.010, 0.5}, {0.010, 0.5}}), scored("b", {{0.012, 0.2}, {0.0098, 0.2}}),
                scored("c", {{0.2, 0}, {0.2, 0}})})
            .index == 1);
}

TEST_CASE("a mixture takes each layer from its best candidate, if no candidate is best in all") {
  const Scored a = scored("a", {{0.3, 0}, {0.1, 0}}), b = scored("b", {{0.2, 0}, {0.2, 0}});
  CHECK(with_mixture({a, scored("best", {{0.1, 0}, {0.05, 0}}), b}, "minmax").size() == 3);
  const std::vector<Scored> mixed = with_mixture({a, scored("c", {{0.4, 0}, {0.4, 0}}), b, b}, "minmax");
  REQUIRE(mixed.size() == 5);
  CHECK(mixed[4].candidate_of_layer == std::vector<std::size_t>{2, 0});
  CHECK(mixed[4].mean().softmax_kl == doctest::Approx(0.15));
}

}  // namespace oscar
