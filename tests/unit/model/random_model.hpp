// SPDX-License-Identifier: MIT
// Tiny checkpoints with random weights, one for each way in which a decoder computes, and everything that a run shows.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "model/run/runner.hpp"

namespace oscar::test {

/// Writes config.json and float32 weights of a model: dense, soft caps and windows, sinks and stacked experts, gated
/// delta, latent attention, shared caches and layer inputs, side by side (attention and MLP).
void write_random_model(const std::string& name, const fs::path& folder);
/// Calls check(name, folder) with each of them.
void for_each_random_model(const std::function<void(const std::string& name, const fs::path& folder)>& check);

/// q, k, v of each layer with a cache, then logits, in float32.
[[nodiscard]] std::vector<std::vector<float>> run_model(const fs::path& model, const TokenSequence& tokens,
                                                        const DecoderOptions& options);
/// The logits of each sequence, (T, vocab_size), with these hooks.
[[nodiscard]] std::vector<std::vector<float>> logits_of(ModelRunner& runner,
                                                        const std::vector<TokenSequence>& sequences,
                                                        RunHooks hooks = {});
/// q, k and v of one layer as capture() delivers them in bfloat16.
[[nodiscard]] std::vector<std::vector<float>> capture_layer(const fs::path& model, const TokenSequence& tokens,
                                                            int layer, const DecoderOptions& options);
/// Checks that what run_model() gives in bfloat16 is close to what it gives in float32, and not the same. Behind a
/// router tokens may take other ways, and nothing is promised.
void check_bfloat16(const std::string& name, const std::vector<std::vector<float>>& rounded,
                    const std::vector<std::vector<float>>& exact);
/// Checks FinalStates::compare() against plain loops over logits, behind all of so many tokens but the last. Returns
/// how much tokens that do not count would have added to a divergence at most.
double check_predictions(const fs::path& model, const DecoderOptions& options, std::size_t tokens,
                         double tolerance = 5e-6);
/// |a - b| / |b|
[[nodiscard]] double distance(const std::vector<float>& a, const std::vector<float>& b);
/// Ids that the random models know.
[[nodiscard]] TokenSequence some_tokens(std::size_t count);

}  // namespace oscar::test
