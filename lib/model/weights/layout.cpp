// SPDX-License-Identifier: MIT
#include "model/weights/layout.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace oscar {
namespace {

/// Collects the weights of one layer; parts without a name are left out.
class Specs {
 public:
  explicit Specs(const ModelConfig& config) : norm_bias_(config.norm_bias) {}
  void linear(const std::string& part, std::int64_t out, std::int64_t in, bool bias = false) {
    if (part.empty()) return;
    add(part + ".weight", {out, in});
    if (bias) add(part + ".bias", {out});
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
    out.linear("self_attn.q_a_proj", m.query_latent_dim, hidden, m.latent_bias);
    out.norm("self_attn.q_a_layernorm", m.query_latent_dim);
    out.linear("self_attn.q_b_proj", queries, m.query_latent_dim);
  } else {
    out.linear("self_attn.q_proj", queries, hidden);
  }
  out.linear("self_attn.kv_a_proj_with_mqa", m.latent_dim + m.rope.dim, hidden, m.latent_bias);
  out.norm("self_attn.kv_a_layernorm", m.latent_dim);
  out.linear("self_attn.kv_b_proj", std::int64_t{m.num_heads} * (m.nope_dim + m.head_value_dim), m.latent_dim);
  out.linear("self_attn.o_proj", hidden, std::int64_t{m.num_heads} * m.head_value_dim, m.latent_bias);
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

}  // namespace

void settle_expert_layouts(ModelConfig& config, const WeightStore& weights) {
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
  Specs out(config);
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
  Specs out(config);
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
  if (!config.tie_word_embeddings) specs.push_back({head_weight_name(config), {vocab, hidden}});
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

void check_weights(const ModelConfig& config, const WeightStore& weights, const std::string& where) {
  for (const WeightSpec& spec : expected_weights(config)) {
    const TensorRef& tensor = weights.at(spec.name);
    std::vector<std::int64_t> shape = tensor.shape;
    if (shape.size() == 2 && spec.shape.size() == 1 && shape[0] == 1) shape.erase(shape.begin());  // a row for a vector
    if (shape != spec.shape) {
      throw DataError("weight " + spec.name + " is " + shape_text(tensor.shape) + ", config.json asks for " +
                          shape_text(spec.shape),
                      where, "check that config.json and the weights belong together, or fetch the checkpoint again");
    }
    const bool fits = spec.bytes ? tensor.dtype == DType::kU8
                                 : is_activation_dtype(tensor.dtype) || (config.fp8 && tensor.dtype == DType::kF8E4M3);
    if (!fits) {
      throw DataError("weight " + spec.name + " is of " + std::string(name_of(tensor.dtype)), where,
                      "use a checkpoint in bfloat16, float16, float32 or float8 with scales");
    }
  }
}

}  // namespace oscar
