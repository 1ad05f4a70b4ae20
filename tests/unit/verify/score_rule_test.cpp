// SPDX-License-Identifier: MIT
// Attention that replaces a model's own follows its sinks, soft caps and windows.
#include <doctest/doctest.h>

#include "measure/attention/attention_metrics.hpp"
#include "measure/peers/baselines.hpp"
#include "measure/predictions/model_metrics.hpp"
#include "support/backend.hpp"
#include "support/support.hpp"
#include "unit/model/random_model.hpp"
#include "unit/verify/text_figures.hpp"

namespace oscar {
namespace {

/// Logits with attention of the backend in place of the model's own, by the model's rules after `change`.
std::vector<float> replaced_logits(ModelRunner& runner, const TokenSequence& tokens,
                                   const std::function<void(ScoreRule&)>& change) {
  const auto backend = test::make_test_backend();
  RunHooks hooks;
  hooks.attention = [&](int layer, std::size_t, const QkvView& qkv, std::span<float> out) {
    ScoreRule rule = runner.score_rule(layer);
    change(rule);
    SequenceInput input{.qkv = qkv, .precision = Precision::kExact};
    input.scores = &rule;
    backend->hold(input)->attend({}, {}, out);
    return true;
  };
  return test::logits_of(runner, {tokens}, hooks).front();
}

}  // namespace

TEST_CASE("attention with sinks, a soft cap or a window is the model's own, and another one is noticed") {
  const auto check = [](const std::string& name, const std::function<void(ScoreRule&)>& change) {
    const test::TemporaryFolder folder;
    test::write_random_model(name, folder.path());
    const TokenSequence tokens = test::some_tokens(90);
    const std::vector<float> own = test::run_model(folder.path(), tokens, {}).back();
    const auto runner = open_model(folder.path());
    CHECK(test::distance(replaced_logits(*runner, tokens, [](ScoreRule&) {}), own) < 1e-5);
    CHECK(test::distance(replaced_logits(*runner, tokens, change), own) > 1e-3);
  };
  check("sinks and stacked experts", [](ScoreRule& rule) {
    REQUIRE(rule.sinks.size() == 4);
    rule.sinks[1] += 0.5F;
  });
  check("soft caps and windows", [](ScoreRule& rule) {
    REQUIRE(rule.soft_cap == 30);
    rule.soft_cap = 3;
  });
  check("soft caps and windows", [](ScoreRule& rule) {
    if (rule.reach > 0) ++rule.reach;
  });
}

TEST_CASE("layers that read the cache of another read it as a method stores it") {
  const test::TemporaryFolder folder;
  test::write_random_model("shared caches and layer inputs", folder.path());
  const auto runner = open_model(folder.path());
  CHECK(runner->config().cache_layers() == std::vector<int>{1, 3});
  CHECK(runner->config().cache_of(5) == 3);
  const auto backend = test::make_test_backend();
  const std::vector<TokenSequence> sequences{test::some_tokens(120)};
  const std::map<int, ScoreRule> rules = rules_of(*runner);
  const KvMethod naive = make_baseline("naive", {{1, 64, 2}, {3, 64, 2}}, {4, 16}, 0);
  /// caches: the one that a layer's attention is replaced by; the others keep theirs.
  const auto run = [&](const std::map<int, int>& caches) {
    RunHooks hooks;
    hooks.attention = [&](int layer, std::size_t, const QkvView& qkv, std::span<float> out) {
      const auto cache = caches.find(layer);
      if (cache == caches.end()) return false;
      const ScoreRule& rule = rules.at(cache->second);
      attend(naive, cache->second, qkv, {0, qkv.q.num_tokens}, rule, Precision::kExact, *backend, out);
      return true;
    };
    return test::logits_of(*runner, sequences, hooks).front();
  };
  const std::vector<float> exact = run({});
  const auto kld_of = [&](const std::map<int, int>& caches) {
    return model_metrics({test::text_figures(sequences[0], run(caches), exact)}, {}).kld_mean;
  };
  Status silent;
  const auto seen = measure_model(*runner, {sequences, {}, {}}, {naive}, Precision::kExact, *backend, silent);
  const double expected = kld_of({{1, 1}, {3, 3}, {5, 3}}), by_owners = kld_of({{1, 1}, {3, 3}});
  CHECK(seen[0].kld_mean == doctest::Approx(expected).epsilon(1e-4).scale(0));
  CHECK(std::abs(by_owners / expected - 1) > 0.01);
}

TEST_CASE("a quantised cache in a model with sinks costs something, and one that is exact nothing") {
  const test::TemporaryFolder folder;
  test::write_random_model("sinks and stacked experts", folder.path());
  const auto runner = open_model(folder.path());
  const auto backend = test::make_test_backend();
  Status silent;
  const ModelData data{{test::some_tokens(120)}, {}, {}};
  const int layer = runner->config().cache_layers().front();
  std::vector<KvMethod> methods;
  for (const bool quantized : {false, true}) {
    methods.push_back(make_baseline("naive", {{layer, 32, 2}}, {4, 16}, 0));
    KvLayer& only = methods.back().layers.at(layer);
    only.key.quantized = only.value.quantized = quantized;
  }
  const auto metrics = measure_model(*runner, data, methods, Precision::kExact, *backend, silent);
  CHECK(metrics[0].kld_mean < 1e-9);
  CHECK(metrics[1].kld_mean > 1e-4);
}

}  // namespace oscar
