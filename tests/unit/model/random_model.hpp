// SPDX-License-Identifier: MIT
// Tiny checkpoints with random weights, one for each way in which a decoder computes, and everything that a run shows.
#pragma once

#include <string>
#include <vector>

#include "base/files.hpp"
#include "model/run/runner.hpp"

namespace oscar::test {

/// Names of the models: dense, soft caps and windows, sinks and stacked experts, gated delta, latent attention, shared
/// caches and layer inputs, attention and MLP side by side.
[[nodiscard]] const std::vector<std::string>& random_model_names();
/// Writes config.json and float32 weights.
void write_random_model(const std::string& name, const fs::path& folder);

/// q, k, v of each layer with a cache, then logits, in float32.
[[nodiscard]] std::vector<std::vector<float>> run_model(const fs::path& model, const TokenSequence& tokens,
                                                        const DecoderOptions& options);
/// q, k and v of one layer as capture() delivers them in bfloat16.
[[nodiscard]] std::vector<std::vector<float>> capture_layer(const fs::path& model, const TokenSequence& tokens,
                                                            int layer, const DecoderOptions& options);
/// How far tensor `i` of run_model() in bfloat16 may be from that in float32. Behind a router tokens may take other
/// ways, and nothing is promised.
[[nodiscard]] double bfloat16_limit(const std::string& name, std::size_t i);
/// |a - b| / |b|
[[nodiscard]] double distance(const std::vector<float>& a, const std::vector<float>& b);
/// Ids that the random models know.
[[nodiscard]] TokenSequence some_tokens(std::size_t count);

}  // namespace oscar::test
