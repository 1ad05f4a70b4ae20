// SPDX-License-Identifier: MIT
// The decoder against what Hugging Face transformers computes in fp32.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "base/threads.hpp"
#include "model/run/runner.hpp"
#include "support/support.hpp"
#include "tensor/npy.hpp"
#include "unit/model/parity.hpp"
#include "unit/model/random_model.hpp"

namespace oscar {
namespace {

constexpr double kParity = 1e-4;  // of the largest magnitude in a tensor

void check_parity(const fs::path& model, const fs::path& activations) {
  double worst = 0;
  const int layers = test::compare_with_reference(model, activations, [&](const std::string& name, double error) {
    CHECK_MESSAGE(error < kParity, name);
    worst = std::max(worst, error);
  });
  CHECK(layers == read_model_config(model).num_layers);
  MESSAGE("largest relative error " << worst);
}

/// Every q, k, v and logit of a run, by layer and sequence.
std::map<std::pair<int, std::size_t>, std::vector<float>> everything(const std::vector<TokenSequence>& sequences) {
  std::map<std::pair<int, std::size_t>, std::vector<float>> all;
  std::mutex mutex;
  const auto keep = [&](int layer, std::size_t s, const float* data, std::size_t size) {
    const std::lock_guard lock(mutex);
    auto& values = all[{layer, s}];
    values.insert(values.end(), data, data + size);
  };
  RunHooks hooks;
  hooks.attention = [&](int layer, std::size_t s, const QkvView& qkv, std::span<float>) {
    for (const HeadsView& view : {qkv.q, qkv.k, qkv.v}) {
      keep(layer, s, reinterpret_cast<const float*>(view.data),
           static_cast<std::size_t>(view.num_tokens * view.num_heads * view.head_dim));
    }
    return false;
  };
  hooks.logits = [&](std::size_t s, std::span<const float> logits) { keep(-1, s, logits.data(), logits.size()); };
  Status silent;
  open_model(test::data("qwen3-2m"))->run(sequences, hooks, silent);
  return all;
}

std::vector<TokenSequence> some_sequences() {
  std::vector<TokenSequence> sequences = test::rows_of(read_npy(test::data("golden/qwen3-2m/tokens_calib.npy")));
  sequences.resize(5);
  for (std::size_t s = 0; s < sequences.size(); ++s) sequences[s].resize(37 + 100 * s);
  return sequences;
}

}  // namespace

// That long texts have the perplexity of the reference: tests/unit/verify/golden_rows_test.cpp.
TEST_CASE("the sample model has the q, k, v and logits of the reference") {
  check_parity(test::data("qwen3-2m"), test::data("golden/qwen3-2m/activations_f32.safetensors"));
}

TEST_CASE("two models have those of the reference over more tokens") {
  for (const std::string name : {"qwen3-2m", "qwen3-15m"}) {
    const auto model = test::shared_data("models/" + name), golden = test::shared_data("golden/" + name);
    if (!model || !golden) return;
    check_parity(*model, *golden / "activations_f32.safetensors");
  }
}

TEST_CASE("no bit of a run depends on the number of threads or on the run") {
  const std::vector<TokenSequence> sequences = some_sequences();
  set_num_threads(1);
  const auto one = everything(sequences);
  set_num_threads(3);
  const auto three = everything(sequences);
  const auto again = everything(sequences);
  set_num_threads(0);
  CHECK(one.size() == 5 * sequences.size());
  CHECK(one == three);
  CHECK(three == again);
}

TEST_CASE("what a sequence yields does not depend on its neighbours") {
  const std::vector<TokenSequence> sequences = some_sequences();
  const auto together = everything(sequences);
  const auto alone = everything({sequences[2]});
  CHECK(alone.at({3, 0}) == together.at({3, 2}));
  CHECK(alone.at({-1, 0}) == together.at({-1, 2}));
}

TEST_CASE("figures of predictions are what plain loops make of logits") {
  // More positions than are worked on in fp64 at a time, and tokens that do not count.
  CHECK(test::check_predictions(test::data("qwen3-2m"), {}, 600) > 6e-5);
  test::for_each_random_model(
      [&](const std::string&, const fs::path& folder) { test::check_predictions(folder, {}, 40); });
}

TEST_CASE("an attention hook that fills the output replaces attention") {
  const std::vector<TokenSequence> sequences{some_sequences()[1]};
  const auto run = [&](bool replace) {
    RunHooks hooks;
    hooks.attention = [&](int, std::size_t, const QkvView&, std::span<float> out) {
      std::fill(out.begin(), out.end(), 0.0F);
      return replace;
    };
    return test::logits_of(*open_model(test::data("qwen3-2m")), sequences, hooks).front();
  };
  const std::vector<float> exact = run(false), replaced = run(true);
  CHECK(exact != replaced);
  // Without attention a token knows nothing of those before it: equal tokens have equal logits.
  const auto& ids = sequences[0];
  std::size_t pairs = 0;
  for (std::size_t a = 0; a < ids.size(); ++a) {
    const auto b = static_cast<std::size_t>(
        std::find(ids.begin() + static_cast<std::ptrdiff_t>(a) + 1, ids.end(), ids[a]) - ids.begin());
    if (b == ids.size()) continue;
    ++pairs;
    CHECK(std::abs(replaced[a * 2048] - replaced[b * 2048]) < 1e-4F);
  }
  CHECK(pairs > 10);
}

TEST_CASE("a pass steps layer by layer as a run does") {
  const std::vector<TokenSequence> sequences = some_sequences();
  const auto expected = everything(sequences);
  const std::unique_ptr<ModelRunner> runner = open_model(test::data("qwen3-2m"));
  Status silent;
  const std::unique_ptr<ModelPass> pass = runner->begin(sequences, {.layers = 4}, silent);
  for (int layer = 0; layer < 4; ++layer) {
    CHECK(pass->layer() == layer);
    pass->step(
        [&](int seen, std::size_t s, const QkvView& qkv, std::span<float>) {
          const auto* q = reinterpret_cast<const float*>(qkv.q.data);
          CHECK(std::equal(q, q + qkv.q.num_tokens * 3 * 128, expected.at({seen, s}).begin()));
          return false;
        },
        layer == 3);
  }
  CHECK(pass->layer() == 4);
}

TEST_CASE("token ids and lengths that the model cannot take are refused with their place") {
  const std::unique_ptr<ModelRunner> runner = open_model(test::data("qwen3-2m"));
  Status silent;
  const auto run = [&](TokenSequence sequence) {
    runner->run(std::vector<TokenSequence>{{1, 2}, std::move(sequence)}, {}, silent);
    return 0;
  };
  CHECK_ERROR(run({1, 2048}), DataError, "token id 2048 is outside the vocabulary of 2048 | sequence 1, position 1");
  CHECK_ERROR(run({-1}), DataError, "token id -1");
  CHECK_ERROR(run({}), DataError, "the sequence is empty | sequence 1");
  CHECK_ERROR(run(TokenSequence(2049, 5)), DataError, "the model's context is 2048");
  CHECK(run(TokenSequence(1, 5)) == 0);
}

}  // namespace oscar
