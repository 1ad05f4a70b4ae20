// SPDX-License-Identifier: MIT
// What a decoder computes in and where it keeps hidden states, on the CPU; cuda_test.cpp has the same on a GPU.
#include <doctest/doctest.h>

#include <map>
#include <mutex>

#include "support/support.hpp"
#include "unit/model/random_model.hpp"

namespace oscar {

TEST_CASE("models in bfloat16 stay close to themselves in float32") {
  const TokenSequence tokens = test::some_tokens(100);
  for (const std::string& name : test::random_model_names()) {
    const test::TemporaryFolder folder;
    test::write_random_model(name, folder.path());
    const auto exact = test::run_model(folder.path(), tokens, {.dtype = "float32"});
    const auto rounded = test::run_model(folder.path(), tokens, {.dtype = "bfloat16"});
    REQUIRE(exact.size() == rounded.size());
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double error = test::distance(rounded[i], exact[i]);
      CHECK_MESSAGE(error < test::bfloat16_limit(name, i), name << ", tensor " << i);
      CHECK_MESSAGE(error > 1e-4, name << ", tensor " << i);  // it is bfloat16
    }
  }
}

TEST_CASE("hidden states that live on the host give the same bits") {
  const TokenSequence tokens = test::some_tokens(60);
  for (const std::string& name : test::random_model_names()) {
    const test::TemporaryFolder folder;
    test::write_random_model(name, folder.path());
    CHECK(test::run_model(folder.path(), tokens, {.hidden_on_host = true}) ==
          test::run_model(folder.path(), tokens, {}));
  }
}

TEST_CASE("a pass goes on behind any layer with the bits of one that never ended") {
  const std::vector<TokenSequence> sequences{test::some_tokens(40), test::some_tokens(23)};
  for (const std::string& name : test::random_model_names()) {
    const test::TemporaryFolder folder;
    test::write_random_model(name, folder.path() / "model");
    const std::unique_ptr<ModelRunner> runner = open_model(folder.path() / "model");
    Status silent;
    const auto logits_behind = [&](ModelPass& pass) {
      std::map<std::size_t, std::vector<float>> all;
      while (pass.layer() < runner->config().num_layers) pass.step({}, false);
      std::mutex mutex;
      for_each_logits(*pass.final_states(), sequences, runner->config().vocab_size,
                      [&](std::size_t s, std::span<const float> logits) {
                        const std::lock_guard lock(mutex);
                        all[s].assign(logits.begin(), logits.end());
                      });
      return all;
    };
    const PassOptions all_layers{.layers = runner->config().num_layers};
    const std::unique_ptr<ModelPass> pass = runner->begin(sequences, all_layers, silent);
    std::vector<fs::path> states;
    while (pass->layer() + 1 < runner->config().num_layers) {
      pass->step({}, false);
      states.push_back(folder.path() / (std::to_string(pass->layer()) + ".safetensors"));
      pass->save(states.back());
    }
    const auto expected = logits_behind(*pass);
    for (const fs::path& state : states) {
      const std::unique_ptr<ModelPass> restored = runner->begin(sequences, all_layers, silent);
      restored->restore(state);
      CHECK_MESSAGE(logits_behind(*restored) == expected, name << ", " << state.filename().string());
    }
  }
}

TEST_CASE("what is captured is what hooks see, rounded") {
  const test::TemporaryFolder folder;
  test::write_random_model("dense", folder.path());
  const TokenSequence tokens = test::some_tokens(50);
  auto seen = test::run_model(folder.path(), tokens, {});
  const auto captured = test::capture_layer(folder.path(), tokens, 1, {});
  for (std::size_t i = 0; i < 3; ++i) {
    for (float& value : seen[3 + i]) value = round_to_bf16(value);
    CHECK(captured[i] == seen[3 + i]);
  }
}

TEST_CASE("types and devices that do not exist are refused") {
  const test::TemporaryFolder folder;
  test::write_random_model("dense", folder.path());
  CHECK_ERROR(open_model(folder.path(), {.dtype = "float64"}), UsageError, "do not compute in \"float64\"");
  for (const char* device : {"tpu", "cuda:", "cuda:x", "cuda:1000", ""}) {
    CHECK_ERROR(open_model(folder.path(), {.device = device}), UsageError, "use auto, cpu, cuda or cuda:N");
  }
}

}  // namespace oscar
