// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "model/gguf/gguf_model.hpp"

namespace oscar {
namespace {

using PartNames = std::map<std::string, std::string>;

/// The parts of a layer in llama.cpp's names and in a Llama checkpoint's.
const PartNames kUsual{{"attn_norm", "input_layernorm"},
                       {"attn_q", "self_attn.q_proj"},
                       {"attn_k", "self_attn.k_proj"},
                       {"attn_v", "self_attn.v_proj"},
                       {"attn_qkv", "self_attn.qkv_proj"},
                       {"attn_output", "self_attn.o_proj"},
                       {"attn_q_norm", "self_attn.q_norm"},
                       {"attn_k_norm", "self_attn.k_norm"},
                       {"ffn_norm", "post_attention_layernorm"},
                       {"ffn_gate", "mlp.gate_proj"},
                       {"ffn_up", "mlp.up_proj"},
                       {"ffn_down", "mlp.down_proj"},
                       {"ffn_gate_inp", "mlp.gate"},
                       {"ffn_gate_exps", "mlp.experts.gate_proj"},
                       {"ffn_up_exps", "mlp.experts.up_proj"},
                       {"ffn_down_exps", "mlp.experts.down_proj"},
                       {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
                       {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
                       {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
                       {"ffn_down_shexp", "mlp.shared_expert.down_proj"}};

const PartNames kGemma{{"post_attention_norm", "post_attention_layernorm"},
                       {"ffn_norm", "pre_feedforward_layernorm"},
                       {"post_ffw_norm", "post_feedforward_layernorm"}};

/// Where architectures differ from the usual names.
const std::map<std::string, PartNames> kOwn{
    {"gemma2", kGemma},
    {"gemma3", kGemma},
    {"glm4",
     {{"post_attention_norm", "post_self_attn_layernorm"},
      {"post_ffw_norm", "post_mlp_layernorm"},
      {"ffn_up", "mlp.gate_up_proj"}}},
    {"gpt-oss",
     {{"post_attention_norm", "post_attention_layernorm"},
      {"attn_sinks", "self_attn.sinks"},
      {"ffn_gate_inp", "mlp.router"}}},
    {"llama",
     {{"ffn_gate_inp", "block_sparse_moe.gate"},
      {"ffn_gate_exps", "block_sparse_moe.experts.gate_proj"},
      {"ffn_up_exps", "block_sparse_moe.experts.up_proj"},
      {"ffn_down_exps", "block_sparse_moe.experts.down_proj"}}},
    {"phi3", {{"ffn_up", "mlp.gate_up_proj"}}},
};

const PartNames kOutside{{"token_embd.weight", "model.embed_tokens.weight"},
                         {"output_norm.weight", "model.norm.weight"},
                         {"output.weight", "lm_head.weight"}};

std::optional<std::string> name_of_part(const std::string& architecture, const std::string& part) {
  const auto own = kOwn.find(architecture);
  if (own != kOwn.end()) {
    if (const auto found = own->second.find(part); found != own->second.end()) return found->second;
  }
  const auto found = kUsual.find(part);
  return found == kUsual.end() ? std::nullopt : std::optional(found->second);
}

/// Stacks of experts have no ".weight" behind their names, and biases of stacks are told by "_bias"; so do sinks.
std::string with_kind(const std::string& part, const std::string& name, const std::string& kind) {
  if (part == "attn_sinks") return name;
  if (!part.ends_with("_exps")) return name + "." + kind;
  return kind == "weight" ? name : name + "_bias";
}

/// The parts of "blk.LAYER.PART.KIND".
struct LayerTensor {
  std::string layer, part, kind;
};

/// None unless the name has four parts, of which the second is a number and the last "weight" or "bias". Names come
/// from the file and may be of any length.
std::optional<LayerTensor> split_name(std::string_view name) {
  constexpr std::size_t kMostDigits = 6;
  std::array<std::string_view, 4> parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t dot = name.find('.');
    if ((dot == std::string_view::npos) != (i + 1 == parts.size())) return std::nullopt;
    parts[i] = name.substr(0, dot);
    name.remove_prefix(i + 1 == parts.size() ? name.size() : dot + 1);
  }
  const auto& [block, layer, part, kind] = parts;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const bool is_number = !layer.empty() && layer.size() <= kMostDigits && std::ranges::all_of(layer, is_digit);
  const bool is_layer = is_number && (layer.size() == 1 || layer.front() != '0');
  if (block != "blk" || !is_layer || (kind != "weight" && kind != "bias")) return std::nullopt;
  return LayerTensor{std::string(layer), std::string(part), std::string(kind)};
}

}  // namespace

std::optional<GgufWeightName> gguf_weight_name(const GgufModel& model, const std::string& tensor) {
  const std::string& architecture = model.architecture();
  const bool plus_one = architecture.starts_with("gemma") && tensor.ends_with("norm.weight");
  if (const auto found = kOutside.find(tensor); found != kOutside.end()) {
    return GgufWeightName{.name = found->second, .plus_one = plus_one};
  }
  const std::optional<LayerTensor> split = split_name(tensor);
  if (!split) return std::nullopt;
  const std::string& part = split->part;
  const std::optional<std::string> name = name_of_part(architecture, part);
  if (!name) return std::nullopt;
  return GgufWeightName{.name = "model.layers." + split->layer + "." + with_kind(part, *name, split->kind),
                        .turned = architecture == "llama" && (part == "attn_q" || part == "attn_k"),
                        .plus_one = plus_one,
                        .one_row = part == "ffn_gate_inp_shexp"};
}

}  // namespace oscar
