// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <array>
#include <limits>

#include "base/sha256.hpp"
#include "model/config/config.hpp"

namespace oscar {
namespace {

/// Six digits, which float32 keeps, so that a number and its float32 are told alike.
template <class... Values>
std::string line(const Values&... values) {
  const std::array<double, sizeof...(values)> numbers{static_cast<double>(values)...};
  return fmt::format("{:.6g}\n", fmt::join(numbers, " "));
}

/// The frequencies stand for the rule that they are made by: in GGUF, Llama 3's are factors of plain ones. These are
/// rounded: hence four digits.
std::string text_of(const RopeSpec& rope, double query_growth) {
  const auto turns = [&](std::int64_t end) {
    return fmt::format("{:.4g}\n", fmt::join(inverse_frequencies(rope, end), " "));
  };
  const std::string near = turns(0), far = turns(std::numeric_limits<std::int64_t>::max());
  const bool by_length = near != far || query_growth > 0;
  return line(rope.dim, rope.theta, rope.interleaved, rope.split_pairs, rope.attention_factor, rope.irregular.empty()) +
         near + (by_length ? far + line(rope.original_context, query_growth) : "");
}

std::string text_of(const MixerSpec& m) {
  return line(m.kind, m.num_heads, m.num_kv_heads, m.head_dim, m.value_dim, m.window, m.softmax_scale, m.soft_cap,
              m.sinks, m.output_gate, m.head_norm, m.norm_after_rope, m.value_norm, m.value_is_key, m.kv_layer,
              m.own_kv, m.latent_dim, m.query_latent_dim, m.nope_dim, m.head_value_dim, m.conv_width) +
         text_of(m.rope, m.query_growth);
}

std::string text_of(const MlpSpec& mlp) {
  const ExpertsSpec& e = mlp.experts;
  return line(mlp.activation, mlp.gate.empty(), mlp.clamp, mlp.alpha, e.count > 0 ? e.intermediate : mlp.intermediate) +
         line(e.count, e.top_k, e.router, e.normalize, e.scale, e.groups, e.top_groups, e.group_votes,
              e.choice_bias.empty(), e.shared_intermediate, e.shared_gate.empty(), e.router_scale.empty());
}

}  // namespace

std::string config_sha256(const ModelConfig& config) {
  std::string text = line(config.hidden_size, config.rms_norm_eps, config.norm_plus_one, config.layer_norm,
                          config.norm_bias, config.embedding_scale, config.logit_scale, config.logit_soft_cap);
  for (const BlockSpec& block : config.blocks) {
    const bool biased = block.mixer.qkv_bias || block.mixer.output_bias || block.mlp.bias || !block.biased.empty();
    text +=
        text_of(block.mixer) + text_of(block.mlp) +
        line(block.mixer_norm.empty(), block.mixer_out_norm.empty(), block.mlp_norm.empty(), block.mlp_out_norm.empty(),
             block.scalar.empty(), block.parallel, block.residual_scale, block.input_dim, block.input_index, biased);
  }
  return sha256_hex(text);
}

}  // namespace oscar
