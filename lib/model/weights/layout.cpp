// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <string_view>

#include "base/errors.hpp"
#include "model/weights/checkpoint.hpp"

namespace oscar {
namespace {

/// Collects the weights of one layer; parts without a name are left out.
class Specs {
 public:
  Specs(const ModelConfig& config, const BlockSpec& block) : norm_bias_(config.norm_bias), biased_(block.biased) {}
  void linear(const std::string& part, std::int64_t out, std::int64_t in, bool bias = false) {
    if (part.empty()) return;
    add(part + ".weight", {out, in});
    if (bias || biased_.contains(part)) add(part + ".bias", {out});
  }
  void norm(const std::string& part, std::int64_t size) {
    if (part.empty()) return;
    add(part + ".weight", {size});
    if (norm_bias_) add(part + ".bias", {size});
  }
  void add(const std::string& name, std::vector<std::int64_t> shape, bool bytes = false) {
    specs_.push_back({name, std::move(shape), bytes});
  }
  [[nodiscard]] std::vector<WeightSpec> take() { return std::move(specs_); }

 private:
  bool norm_bias_;
  const std::set<std::string>& biased_;
  std::vector<WeightSpec> specs_;
};

void attention_weights(const MixerSpec& m, std::int64_t hidden, Specs& out) {
  const std::int64_t queries = std::int64_t{m.num_heads} * m.head_dim, keys = std::int64_t{m.num_kv_heads} * m.head_dim;
  const std::int64_t values = std::int64_t{m.num_kv_heads} * m.value_dim;
  if (!m.fused.empty()) {
    out.linear(m.fused, queries + keys + values, hidden, m.qkv_bias);
  } else {
    out.linear("self_attn.q_proj", m.output_gate ? 2 * queries : queries, hidden, m.qkv_bias);
    if (m.own_kv) out.linear("self_attn.k_proj", keys, hidden, m.qkv_bias);
    if (m.own_kv && !m.value_is_key) out.linear("self_attn.v_proj", values, hidden, m.qkv_bias);
  }
  if (m.head_norm != HeadNorm::kNone) {
    const bool whole = m.head_norm == HeadNorm::kAllHeads;
    out.norm(m.query_norm, whole ? queries : m.head_dim);
    if (m.own_kv) out.norm(m.key_norm, whole ? keys : m.head_dim);
  }
  if (m.sinks) out.add("self_attn.sinks", {m.num_heads});
  out.linear("self_attn.o_proj", hidden, std::int64_t{m.num_heads} * m.value_dim, m.output_bias);
}

void latent_weights(const MixerSpec& m, std::int64_t hidden, Specs& out) {
  const std::int64_t queries = std::int64_t{m.num_heads} * (m.nope_dim + m.rope.dim);
  if (m.query_latent_dim > 0) {
    out.linear("self_attn.q_a_proj", m.query_latent_dim, hidden, m.output_bias);
    out.norm("self_attn.q_a_layernorm", m.query_latent_dim);
    out.linear("self_attn.q_b_proj", queries, m.query_latent_dim);
  } else {
    out.linear("self_attn.q_proj", queries, hidden);
  }
  out.linear("self_attn.kv_a_proj_with_mqa", m.latent_dim + m.rope.dim, hidden, m.output_bias);
  out.norm("self_attn.kv_a_layernorm", m.latent_dim);
  out.linear("self_attn.kv_b_proj", std::int64_t{m.num_heads} * (m.nope_dim + m.head_value_dim), m.latent_dim);
  out.linear("self_attn.o_proj", hidden, std::int64_t{m.num_heads} * m.head_value_dim, m.output_bias);
}

void delta_weights(const MixerSpec& m, std::int64_t hidden, Specs& out) {
  const std::int64_t keys = std::int64_t{m.num_kv_heads} * m.head_dim, values = std::int64_t{m.num_heads} * m.value_dim;
  if (m.fused_delta) {
    out.linear("linear_attn.in_proj_qkvz", 2 * keys + 2 * values, hidden);
    out.linear("linear_attn.in_proj_ba", 2 * m.num_heads, hidden);
  } else {
    out.linear("linear_attn.in_proj_qkv", 2 * keys + values, hidden);
    out.linear("linear_attn.in_proj_z", values, hidden);
    out.linear("linear_attn.in_proj_b", m.num_heads, hidden);
    out.linear("linear_attn.in_proj_a", m.num_heads, hidden);
  }
  out.add("linear_attn.conv1d.weight", {2 * keys + values, 1, m.conv_width});
  out.add("linear_attn.dt_bias", {m.num_heads});
  out.add("linear_attn.A_log", {m.num_heads});
  out.norm("linear_attn.norm", m.value_dim);
  out.linear("linear_attn.out_proj", hidden, values);
}

void dense_mlp(const MlpSpec& mlp, std::int64_t hidden, Specs& out) {
  if (!mlp.fused.empty()) {
    out.linear(mlp.fused, 2 * mlp.intermediate, hidden, mlp.bias);
  } else {
    out.linear(mlp.gate, mlp.intermediate, hidden, mlp.bias);  // if there is one
    out.linear(mlp.up, mlp.intermediate, hidden, mlp.bias);
  }
  out.linear(mlp.down, hidden, mlp.intermediate, mlp.bias);
  if (mlp.activation != Activation::kXielu) return;
  for (const char* number : {"alpha_p", "alpha_n"}) out.add(mlp.activation_prefix + number, {1});
}

void router_weights(const ExpertsSpec& experts, std::int64_t hidden, Specs& out) {
  out.linear(experts.gate, experts.count, hidden, experts.gate_bias);
  if (!experts.choice_bias.empty()) out.add(experts.choice_bias, {experts.count});
  if (!experts.router_scale.empty()) out.add(experts.router_scale, {hidden});
  if (!experts.expert_scale.empty()) out.add(experts.expert_scale, {experts.count});
  for (const std::string& norm : {experts.input_norm, experts.routed_norm, experts.shared_norm}) out.norm(norm, hidden);
  if (experts.shared.empty()) return;
  out.linear(experts.shared + ".gate_proj", experts.shared_intermediate, hidden);
  out.linear(experts.shared + ".up_proj", experts.shared_intermediate, hidden);
  out.linear(experts.shared + ".down_proj", hidden, experts.shared_intermediate);
  out.linear(experts.shared_gate, 1, hidden);
}

/// 32 values share a byte of exponent; two values a byte.
void mxfp4_weights(const std::string& name, std::int64_t count, std::int64_t out_size, std::int64_t in, Specs& out) {
  out.add(name + "_blocks", {count, out_size, in / 32, 16}, true);
  out.add(name + "_scales", {count, out_size, in / 32}, true);
  out.add(name + "_bias", {count, out_size});
}

/// Whether the head is not a copy of the embedding, by some of its rows.
bool heads_differ(const Checkpoint& weights) {
  const TensorRef &head = weights.at(kHeadName), &embedding = weights.at(kEmbeddingName);
  if (head.dtype != embedding.dtype || head.shape != embedding.shape || head.shape.empty()) return true;
  const auto rows = static_cast<std::int32_t>(head.shape.front());
  const std::vector<std::int32_t> some{0, rows / 3, rows / 2, rows - 1};
  const std::size_t row_bytes = head.data.size() / static_cast<std::size_t>(std::max(rows, 1));
  std::vector<std::byte> own(some.size() * row_bytes), shared(own.size());
  weights.read_rows(head, some, 0, row_bytes, own.data());
  weights.read_rows(embedding, some, 0, row_bytes, shared.data());
  return own != shared;
}

/// Whether a weight that the config does not ask for may lie in a checkpoint all the same: scales beside weights, what
/// lies outside the layers, and what older versions of transformers saved.
bool may_be_unused(const ModelConfig& config, const std::set<std::string>& expected, const std::string& name) {
  constexpr std::string_view kLayers = "model.layers.";
  // Scales of activations and of caches in float8; the last two are constants of xIELU.
  constexpr auto kHarmless =
      std::to_array<std::string_view>({"rotary_emb.inv_freq", ".input_scale", ".activation_scale", ".q_scale",
                                       ".k_scale", ".v_scale", "attn.masked_bias", "act_fn.beta", "act_fn.eps"});
  const bool harmless = std::ranges::any_of(kHarmless, [&](std::string_view end) { return name.ends_with(end); });
  const bool of_weight =
      std::ranges::any_of(std::to_array<std::string_view>({"_scale", "_scale_inv"}), [&](std::string_view end) {
        return name.ends_with(end) && expected.contains(name.substr(0, name.size() - end.size()));
      });
  if (harmless || of_weight || !name.starts_with(kLayers)) return true;
  const std::string rest = name.substr(kLayers.size());
  const int layer = std::atoi(rest.c_str());
  const bool shared = layer < config.num_layers && !config.block(layer).mixer.own_kv;
  return layer >= config.num_layers ||
         (shared && (rest.find("self_attn.k_") != std::string::npos || rest.find("self_attn.v_") != std::string::npos));
}

/// Types that become numbers where this weight is read: matrices and stacks of experts may be float8 with scales.
bool can_be_read(const ModelConfig& config, const WeightSpec& spec, DType dtype) {
  if (spec.bytes) return dtype == DType::kU8;
  if (is_activation_dtype(dtype)) return true;
  const bool expert_stack = spec.shape.size() == 3 && !spec.name.ends_with("conv1d.weight");
  return config.fp8 && is_float8(dtype) && (spec.shape.size() == 2 || expert_stack);
}

}  // namespace

void require_head(const ModelConfig& config) {
  if (config.own_head || config.tie_word_embeddings) return;
  throw DataError("the checkpoint has no lm_head.weight, so the model predicts nothing", config.identity.id,
                  "use a checkpoint with a head; dump and fits of rotations need none");
}

void settle_layouts(ModelConfig& config, const Checkpoint& weights) {
  config.notices.insert(config.notices.end(), weights.notices().begin(), weights.notices().end());
  config.own_head = weights.contains(kHeadName);
  if (config.tie_word_embeddings && config.own_head && heads_differ(weights)) {
    config.notices.emplace_back(
        "config.json ties the head, but lm_head.weight is another matrix: transformers takes it");
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    ExpertsSpec& experts = config.blocks[static_cast<std::size_t>(layer)].mlp.experts;
    if (experts.count == 0) continue;
    const std::string stack = layer_weight_name(layer, experts.prefix) + ".gate_up_proj";
    const std::string parts = layer_weight_name(layer, experts.prefix) + ".gate_proj";
    if (weights.contains(parts)) {
      experts.layout = ExpertLayout::kStackedParts;
      experts.bias = weights.contains(parts + "_bias");
    } else if (weights.contains(stack + "_blocks")) {
      experts.layout = ExpertLayout::kMxfp4;
    } else if (weights.contains(stack) && experts.layout == ExpertLayout::kSeparate) {
      const std::vector<std::int64_t> by_input{experts.count, experts.intermediate, config.hidden_size};
      const std::vector<std::int64_t>& down = weights.at(layer_weight_name(layer, experts.prefix) + ".down_proj").shape;
      const bool square = experts.intermediate == config.hidden_size;  // then the other stack tells
      const bool wide = weights.at(stack).shape.back() == std::int64_t{2} * experts.intermediate;
      experts.layout = (square ? wide : down == by_input) ? ExpertLayout::kStackedByInput : ExpertLayout::kStacked;
    }
  }
}

std::vector<WeightSpec> layer_weights(const ModelConfig& config, int layer) {
  const BlockSpec& block = config.block(layer);
  const std::int64_t hidden = config.hidden_size;
  Specs out(config, block);
  out.norm(block.mixer_norm, hidden);
  out.norm(block.mixer_out_norm, hidden);
  if (block.mixer.kind == MixerKind::kAttention) attention_weights(block.mixer, hidden, out);
  if (block.mixer.kind == MixerKind::kLatentAttention) latent_weights(block.mixer, hidden, out);
  if (block.mixer.kind == MixerKind::kGatedDelta) delta_weights(block.mixer, hidden, out);
  if (block.mlp_norm != block.mixer_norm) out.norm(block.mlp_norm, hidden);
  out.norm(block.mlp_out_norm, hidden);
  if (block.input_dim > 0) {
    out.linear("per_layer_input_gate", block.input_dim, hidden);
    out.linear("per_layer_projection", hidden, block.input_dim);
    out.norm("post_per_layer_input_norm", hidden);
  }
  if (!block.scalar.empty()) out.add(block.scalar, {1});
  if (block.mlp.experts.count > 0) {
    router_weights(block.mlp.experts, hidden, out);
  } else {
    dense_mlp(block.mlp, hidden, out);
  }
  return out.take();
}

std::vector<WeightSpec> expert_weights(const ModelConfig& config, int layer, int expert) {
  const ExpertsSpec& e = config.block(layer).mlp.experts;
  const std::int64_t hidden = config.hidden_size, size = e.intermediate, count = e.count;
  Specs out(config, config.block(layer));
  const std::string gate_up = e.prefix + ".gate_up_proj", down = e.prefix + ".down_proj";
  if (e.layout == ExpertLayout::kSeparate) {
    const std::string prefix = e.prefix + "." + std::to_string(expert) + ".";
    out.linear(prefix + e.gate_proj, size, hidden);
    out.linear(prefix + e.up_proj, size, hidden);
    out.linear(prefix + e.down_proj, hidden, size);
  } else if (e.layout == ExpertLayout::kStackedParts) {
    for (const char* part : {".gate_proj", ".up_proj"}) {
      out.add(e.prefix + part, {count, size, hidden});
      if (e.bias) out.add(e.prefix + part + "_bias", {count, size});
    }
    out.add(down, {count, hidden, size});
    if (e.bias) out.add(down + "_bias", {count, hidden});
  } else if (e.layout == ExpertLayout::kMxfp4) {
    mxfp4_weights(gate_up, count, 2 * size, hidden, out);
    mxfp4_weights(down, count, hidden, size, out);
  } else if (e.layout == ExpertLayout::kStacked) {
    out.add(gate_up, {count, 2 * size, hidden});
    out.add(down, {count, hidden, size});
  } else {
    const bool bias = e.layout == ExpertLayout::kStackedTransposed;
    out.add(gate_up, {count, hidden, 2 * size});
    if (bias) out.add(gate_up + "_bias", {count, 2 * size});
    out.add(down, {count, size, hidden});
    if (bias) out.add(down + "_bias", {count, hidden});
  }
  return out.take();
}

std::vector<WeightSpec> expected_weights(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size, vocab = config.vocab_size;
  std::vector<WeightSpec> specs{{kEmbeddingName, {vocab, hidden}}, {kFinalNormName, {hidden}}};
  if (config.norm_bias) specs.push_back({kFinalNormBiasName, {hidden}});
  if (config.own_head) specs.push_back({kHeadName, {vocab, hidden}});
  if (const std::int64_t dim = config.blocks.front().input_dim; dim > 0) {
    specs.push_back({kLayerInputsName, {config.layer_input_vocab, config.num_layers * dim}});
    specs.push_back({kLayerInputProjectionName, {config.num_layers * dim, hidden}});
    specs.push_back({kLayerInputNormName, {dim}});
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const auto add = [&](const std::vector<WeightSpec>& parts) {
      for (const WeightSpec& part : parts) {
        specs.push_back({layer_weight_name(layer, part.name), part.shape, part.bytes});
      }
    };
    add(layer_weights(config, layer));
    const ExpertsSpec& experts = config.block(layer).mlp.experts;
    const int listed = experts.layout == ExpertLayout::kSeparate ? experts.count : std::min(experts.count, 1);
    for (int expert = 0; expert < listed; ++expert) add(expert_weights(config, layer, expert));
  }
  return specs;
}

void check_weights(const ModelConfig& config, const Checkpoint& weights, const std::string& where) {
  std::set<std::string> expected;
  for (const WeightSpec& spec : expected_weights(config)) {
    expected.insert(spec.name);
    const TensorRef& tensor = weights.at(spec.name);
    std::vector<std::int64_t> shape = tensor.shape;
    if (shape.size() == 2 && spec.shape.size() == 1 && shape[0] == 1) shape.erase(shape.begin());  // a row for a vector
    if (shape != spec.shape) {
      throw DataError("weight " + spec.name + " is " + shape_text(tensor.shape) + ", config.json asks for " +
                          shape_text(spec.shape),
                      where, "check that config.json and the weights belong together, or fetch the checkpoint again");
    }
    if (!can_be_read(config, spec, tensor.dtype)) {
      throw DataError(
          "weight " + spec.name + " is of " + std::string(name_of(tensor.dtype)) + ", which is not supported for it",
          where, "use a checkpoint in bfloat16, float16 or float32, or in float8 with scales for its matrices");
    }
  }
  for (const std::string& name : weights.names()) {
    if (expected.contains(name) || may_be_unused(config, expected, name)) continue;
    throw DataError("the checkpoint has a weight " + name + ", which models of this config do not use", where,
                    "check that config.json and the weights belong together");
  }
}

}  // namespace oscar
