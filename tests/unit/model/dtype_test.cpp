// SPDX-License-Identifier: MIT
// What a decoder computes in and where it keeps hidden states, on the CPU; cuda_test.cpp has the same on a GPU.
#include <doctest/doctest.h>

#include "support/support.hpp"
#include "unit/model/random_model.hpp"

namespace oscar {

TEST_CASE("models in bfloat16 stay close to themselves in float32") {
  const TokenSequence tokens = test::some_tokens(100);
  test::for_each_random_model([&](const std::string& name, const fs::path& folder) {
    const auto exact = test::run_model(folder, tokens, {.dtype = "float32"});
    const auto rounded = test::run_model(folder, tokens, {.dtype = "bfloat16"});
    test::check_bfloat16(name, rounded, exact);
  });
}

TEST_CASE("hidden states that live on the host give the same bits") {
  const TokenSequence tokens = test::some_tokens(60);
  test::for_each_random_model([&](const std::string&, const fs::path& folder) {
    CHECK(test::run_model(folder, tokens, {.hidden_on_host = true}) == test::run_model(folder, tokens, {}));
  });
}

TEST_CASE("a pass goes on behind any layer with the bits of one that never ended") {
  const std::vector<TokenSequence> sequences{test::some_tokens(40), test::some_tokens(23)};
  test::for_each_random_model([&](const std::string&, const fs::path& folder) {
    const std::unique_ptr<ModelRunner> runner = open_model(folder);
    Status silent;
    const auto logits_behind = [&](ModelPass& pass) {
      std::vector<std::vector<float>> all(sequences.size());
      while (pass.layer() < runner->config().num_layers) pass.step({}, false);
      for_each_logits(*pass.final_states(), sequences, runner->config().vocab_size,
                      [&](std::size_t s, std::span<const float> logits) {
                        all[s] = {logits.begin(), logits.end()};
                      });
      return all;
    };
    const PassOptions all_layers{.layers = runner->config().num_layers};
    const std::unique_ptr<ModelPass> pass = runner->begin(sequences, all_layers, silent);
    std::vector<fs::path> states;
    while (pass->layer() + 1 < runner->config().num_layers) {
      pass->step({}, false);
      states.push_back(folder / (std::to_string(pass->layer()) + ".safetensors"));
      pass->save(states.back());
    }
    const auto expected = logits_behind(*pass);
    for (const fs::path& state : states) {
      const std::unique_ptr<ModelPass> restored = runner->begin(sequences, all_layers, silent);
      restored->restore(state);
      CHECK_MESSAGE(logits_behind(*restored) == expected, state.filename().string());
    }
  });
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
