// SPDX-License-Identifier: MIT
// The decoder on a GPU against the same on the CPU in float32.
#include <doctest/doctest.h>

#include "kernels/backend.hpp"
#include "support/support.hpp"
#include "unit/model/random_model.hpp"

namespace oscar {
namespace {

/// False, and the case counts as skipped, without a GPU.
bool has_gpu() {
  if (cuda_device_count() > 0) return true;
  test::skip_case("needs an NVIDIA GPU and a build with CUDA");
  return false;
}

}  // namespace

TEST_CASE("models in float32 on a GPU equal those on the CPU") {
  if (!has_gpu()) return;
  const TokenSequence tokens = test::some_tokens(400);
  test::for_each_random_model([&](const std::string& name, const fs::path& folder) {
    const auto cpu = test::run_model(folder, tokens, {});
    const auto gpu = test::run_model(folder, tokens, {.device = "cuda", .dtype = "float32"});
    REQUIRE(cpu.size() == gpu.size());
    double worst = 0;
    for (std::size_t i = 0; i < cpu.size(); ++i) worst = std::max(worst, test::distance(gpu[i], cpu[i]));
    CHECK_MESSAGE(worst < 1e-4, name);
    MESSAGE(name << ": " << worst);
  });
}

TEST_CASE("gradients by the history of caches on a GPU equal those on the CPU") {
  if (!has_gpu()) return;
  // All gradients of a model, layer after layer.
  const auto gradients_of = [](const fs::path& model, const DecoderOptions& options) {
    const std::vector<TokenSequence> sequences{test::some_tokens(400)};
    std::vector<float> all;
    Status silent;
    open_model(model, options)
        ->history_gradients(
            {sequences, {3}, {4, 64}},
            [&](int, std::size_t, std::span<const float> key, std::span<const float> value) {
              all.insert(all.end(), key.begin(), key.end());
              all.insert(all.end(), value.begin(), value.end());
            },
            silent);
    return all;
  };
  test::for_each_random_model([&](const std::string& name, const fs::path& folder) {
    // First on the GPU: what differentiates on the CPU settles for a libtorch without its CUDA part.
    const auto gpu = gradients_of(folder, {.device = "cuda", .dtype = "float32"});
    const double error = test::distance(gpu, gradients_of(folder, {}));
    CHECK_MESSAGE(error < 3e-3, name);  // states behind many rows are off by 2^-16 of their terms, which gradients feel
    MESSAGE(name << ": " << error);
  });
}

TEST_CASE("models in bfloat16 on a GPU stay close to those in float32 on the CPU") {
  if (!has_gpu()) return;
  const TokenSequence tokens = test::some_tokens(400);
  test::for_each_random_model([&](const std::string& name, const fs::path& folder) {
    const auto cpu = test::run_model(folder, tokens, {});
    const auto gpu = test::run_model(folder, tokens, {.device = "cuda"});
    test::check_bfloat16(name, gpu, cpu);
  });
}

TEST_CASE("figures of predictions on a GPU are what plain loops make of logits") {
  if (!has_gpu()) return;
  for (const bool on_host : {false, true}) {
    test::check_predictions(test::data("qwen3-2m"), {.device = "cuda", .dtype = "float32", .hidden_on_host = on_host},
                            600, 1e-4);  // logits of many rows are products of halves
  }
}

TEST_CASE("the sample model on a GPU has q, k and v of the CPU") {
  if (!has_gpu()) return;
  TokenSequence tokens(1500);
  for (std::size_t t = 0; t < tokens.size(); ++t) tokens[t] = static_cast<std::int32_t>(t * t % 2048);
  for (const int layer : {0, 3}) {
    const auto cpu = test::capture_layer(test::data("qwen3-2m"), tokens, layer, {});
    const auto gpu = test::capture_layer(test::data("qwen3-2m"), tokens, layer, {.device = "cuda"});
    for (std::size_t i = 0; i < 3; ++i) {
      const double error = test::distance(gpu[i], cpu[i]);
      CHECK_MESSAGE(error < 0.05, "layer " << layer << ", tensor " << i << ": " << error);
    }
  }
}

TEST_CASE("a GPU gives the same bits in every run, and with hidden states on the host") {
  if (!has_gpu()) return;
  const TokenSequence tokens = test::some_tokens(300);
  test::for_each_random_model([&](const std::string&, const fs::path& folder) {
    const auto first = test::run_model(folder, tokens, {.device = "cuda"});
    CHECK(test::run_model(folder, tokens, {.device = "cuda"}) == first);
    CHECK(test::run_model(folder, tokens, {.device = "cuda", .hidden_on_host = true}) == first);
  });
}

TEST_CASE("a GPU that is not there is refused") {
  if (!has_gpu()) return;
  CHECK_ERROR(open_model(test::data("qwen3-2m"), {.device = "cuda:77"}), BackendUnavailable, "count them from cuda:0");
}

}  // namespace oscar
