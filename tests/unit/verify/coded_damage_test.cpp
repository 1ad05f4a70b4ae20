// SPDX-License-Identifier: MIT
#include "verify/coded_damage.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "dump/live_source.hpp"
#include "fit/coded_fit.hpp"
#include "model/tokens.hpp"
#include "support/backend.hpp"
#include "support/support.hpp"
#include "tensor/npy.hpp"
#include "verify/compare_states.hpp"
#include "verify/model_metrics.hpp"

namespace oscar {
namespace {

/// Two sequences of 700 tokens of the sample model's text.
std::vector<TokenSequence> some_texts() {
  return read_tokens(test::data("golden/qwen3-2m/tokens_calib.npy"), {700, 1400, 2});
}

}  // namespace

TEST_CASE("damage is the KL of whole runs in which one side of one layer is coded") {
  const test::TemporaryFolder folder;
  const std::unique_ptr<ModelRunner> runner = open_model(test::data("qwen3-2m"));
  const std::vector<TokenSequence> texts = some_texts();
  const auto backend = test::make_test_backend();
  Status silent;
  const auto source = open_live(*runner, texts, {}, silent);
  const CodedSet set = fit_coded(*source, {.bits = 2.125}, {}, {}, *backend, silent);
  const auto damage =
      verify::measure_damage(*runner, texts, set, CodedBeside::kExact, folder / "states", *backend, silent);
  REQUIRE(damage.size() == set.layers.size());
  CHECK(std::filesystem::is_empty(folder.path()));
  // A quarter of the positions stands for all of them.
  for (const std::size_t i : {std::size_t{0}, set.layers.size() - 1}) {
    KvMethod method = method_of_coded_set(set, set.windows);
    const int id = set.layers[i].layer_id;
    const KvLayer layer = method.layers.at(id);
    for (auto& [other, sides] : method.layers) sides.key.quantized = sides.value.quantized = other == id;
    method.layers.at(id).value.quantized = false;
    const auto whole =
        verify::measure_model(*runner, {.texts = texts}, {method}, Precision::kServing, *backend, silent);
    CAPTURE(id);
    CHECK(damage[i].key == doctest::Approx(whole[0].kld_mean).epsilon(0.5));
    CHECK(damage[i].key > 1e-6);
  }
}

TEST_CASE("damage beside coded layers is what the KL of the whole set loses where one side is exact") {
  const test::TemporaryFolder folder;
  const std::unique_ptr<ModelRunner> runner = open_model(test::data("qwen3-2m"));
  const std::vector<TokenSequence> texts = some_texts();
  const auto backend = test::make_test_backend();
  Status silent;
  const auto source = open_live(*runner, texts, {}, silent);
  const CodedSet set = fit_coded(*source, {.bits = 1.5}, {}, {}, *backend, silent);
  const auto damage =
      verify::measure_damage(*runner, texts, set, CodedBeside::kCoded, folder / "states", *backend, silent);
  REQUIRE(damage.size() == set.layers.size());
  const KvMethod all = method_of_coded_set(set, set.windows);
  KvMethod without = all;
  const int last = set.layers.back().layer_id;
  without.layers.at(last).value.quantized = false;
  const auto kl = [&](const KvMethod& method) {
    return verify::measure_model(*runner, {.texts = texts}, {method}, Precision::kServing, *backend, silent)[0]
        .kld_mean;
  };
  // A quarter of the positions stands for all of them.
  CHECK(damage.back().value == doctest::Approx(kl(all) - kl(without)).epsilon(0.5));
  CHECK(std::abs(damage.back().value) > 1e-6);
}

TEST_CASE("a quarter of the positions are those of whole blocks, to the last") {
  const std::unique_ptr<ModelRunner> runner = open_model(test::data("qwen3-2m"));
  std::vector<TokenSequence> texts = some_texts();
  texts[1].resize(50);
  Status silent;
  const auto states_of = [&](const AttentionHook& attention) {
    std::unique_ptr<FinalStates> states;
    runner->run(texts, {.attention = attention, .final_states = [&](auto all) { states = std::move(all); }}, silent);
    return states;
  };
  const auto exact = states_of({}), other = states_of([](int, std::size_t, const QkvView&, std::span<float> out) {
                                      std::ranges::fill(out, 0.0F);
                                      return true;
                                    });
  const std::vector<const FinalStates*> runs{other.get()};
  const auto all = verify::compare_states(*runner, texts, *exact, runs).front();
  const auto some = verify::compare_states(*runner, texts, *exact, runs, verify::Positions::kQuarter).front();
  REQUIRE(all[0].size() == 699);
  REQUIRE(some[0].size() == 3 * 64);  // [123, 187), [379, 443), [635, 699)
  CHECK(some[1].size() == 49);
  CHECK(some[0].back().kld == doctest::Approx(all[0].back().kld).epsilon(1e-3));
  CHECK(some[0][some[0].size() - 64].kld == doctest::Approx(all[0][699 - 64].kld).epsilon(1e-3));
  CHECK(some[0][some[0].size() - 65].kld == doctest::Approx(all[0][699 - 257].kld).epsilon(1e-3));
}

}  // namespace oscar
