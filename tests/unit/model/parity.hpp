// SPDX-License-Identifier: MIT
// Runs a model and compares its q, k, v and logits with what a reference implementation made of the same tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "model/run/runner.hpp"
#include "tensor/safetensors.hpp"

namespace oscar::test {

inline std::vector<TokenSequence> rows_of(const Tensor& tokens) {
  const std::vector<std::int64_t> ids = tokens.to_int64();
  const auto length = static_cast<std::size_t>(tokens.shape.back());
  std::vector<TokenSequence> rows;
  for (std::size_t begin = 0; begin < ids.size(); begin += length) {
    rows.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(begin),
                      ids.begin() + static_cast<std::ptrdiff_t>(begin + length));
  }
  return rows;
}

inline std::vector<double> doubles(const HeadsView& view) {
  const auto* data = reinterpret_cast<const float*>(view.data);
  return {data, data + view.num_tokens * view.num_heads * view.head_dim};
}

/// Largest difference over largest magnitude; infinite if the sizes differ or a value is not finite.
inline double relative_error(const std::vector<double>& seen, const std::vector<double>& expected) {
  if (seen.size() != expected.size()) return INFINITY;
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (!std::isfinite(seen[i])) return INFINITY;
    error = std::max(error, std::abs(seen[i] - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return error / largest;
}

/// Keys of the first layer that attends, turned back, are the same wherever in the context a text begins. Reports by
/// how much those of a text at the context's end differ from the reference's, which begins at 0.
inline void compare_before_rope(ModelRunner& runner, const std::vector<TokenSequence>& sequences,
                                const SafetensorsFile& golden,
                                const std::function<void(const std::string&, double)>& report) {
  const int layer = runner.config().cache_layers().front();
  const MixerSpec& mixer = runner.config().block(layer).mixer;
  const std::optional<Rotary> rotary = rotary_of(mixer);
  const auto blocks = std::span(runner.config().blocks).first(static_cast<std::size_t>(layer));
  if (!rotary || mixer.kind != MixerKind::kAttention || !why_not_before_rope(mixer).empty()) return;
  if (std::ranges::any_of(blocks, [](const BlockSpec& block) { return block.attends(); })) return;
  const std::string name = "layer_" + std::to_string(layer) + ".k";
  const auto turned_back = [&](const std::vector<double>& keys, std::int64_t first) {
    std::vector<float> rows(keys.begin(), keys.end());
    turn(*rotary, Turn::kBack, rows, mixer.num_kv_heads, first);
    return std::vector<double>(rows.begin(), rows.end());
  };
  const std::int64_t first = runner.config().max_position_embeddings - std::ssize(sequences[0]);
  const AttentionHook see = [&](int at, std::size_t, const QkvView& qkv, std::span<float>) {
    if (at == layer) {
      report(name + " before RoPE",
             relative_error(turned_back(doubles(qkv.k), first), turned_back(golden.at(name).copy().to_doubles(), 0)));
    }
    return false;
  };
  Status silent;
  const auto pass = runner.begin(sequences, {.layers = layer + 1, .first_positions = {first}}, silent);
  while (pass->layer() <= layer) pass->step(see, pass->layer() == layer);
}

/// `report` gets the name and relative error of "layer_<id>.{q,k,v}" of every layer with a cache, and of "logits". The
/// file holds "tokens" (1, T), those tensors in fp32, and the logits of every 16th position; or tokens and logits
/// alone. Returns the layers run. attend: attention in place of the model's own, out (T, Hq, d_v).
inline int compare_with_reference(
    const std::filesystem::path& model, const std::filesystem::path& activations,
    const std::function<void(const std::string&, double)>& report,
    const std::function<void(const ScoreRule&, const QkvView&, std::span<float> out)>& attend = {}) {
  const SafetensorsFile golden(activations);
  const std::vector<TokenSequence> sequences = rows_of(golden.at("tokens").copy());
  const std::unique_ptr<ModelRunner> runner = open_model(model);
  const auto compare = [&](const std::string& name, const std::vector<double>& seen) {
    if (name != "logits" && golden.tensors().size() == 2) return;
    report(name, relative_error(seen, golden.at(name).copy().to_doubles()));
  };
  RunHooks hooks;
  int layers = 0;
  hooks.attention = [&](int layer, std::size_t, const QkvView& qkv, std::span<float> out) {
    const std::string prefix = "layer_" + std::to_string(layer) + ".";
    compare(prefix + "q", doubles(qkv.q));
    compare(prefix + "k", doubles(qkv.k));
    compare(prefix + "v", doubles(qkv.v));
    if (attend) attend(runner->score_rule(layer), qkv, out);
    return static_cast<bool>(attend);
  };
  hooks.layer_done = [&](int) { ++layers; };
  hooks.logits = [&](std::size_t, std::span<const float> logits) {
    std::vector<double> every_16th;
    const auto vocab = static_cast<std::size_t>(runner->config().vocab_size);
    for (std::size_t t = 0; t < sequences[0].size(); t += 16) {
      const auto row = logits.subspan(t * vocab, vocab);
      every_16th.insert(every_16th.end(), row.begin(), row.end());
    }
    compare("logits", every_16th);
  };
  Status silent;
  runner->run(sequences, hooks, silent);
  if (attend) compare_before_rope(*runner, sequences, golden, report);
  return layers;
}

}  // namespace oscar::test
