// SPDX-License-Identifier: MIT
// A Hugging Face checkpoint's config.json, or what a GGUF file says in its place, as numbers and blocks: what
// architectures differ in. config_file.hpp makes blocks, layout.cpp lists the weights that they imply, and one decoder
// (run/decoder.hpp) executes them; nothing else knows a model's name. Weight names are relative to the layer
// ("self_attn.q_proj"); an empty name = the model has no such part.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "model/config/identity.hpp"

namespace oscar {

/// Rotary embedding of the first `dim` channels of a head; the others pass unchanged.
struct RopeSpec {
  std::string type = "default";  // default, linear, llama3, yarn, longrope, proportional
  int dim = 0;                   // even; 0 = none
  double theta = 0;
  bool interleaved = false;  // pairs are (0, 1), (2, 3) … instead of (0, dim/2), (1, dim/2 + 1) …
  bool split_pairs = false;  // interleaved pairs come out as halves (DeepSeek)
  double factor = 1;
  double original_context = 0;                                 // llama3, yarn, longrope
  double attention_factor = 1;                                 // of cos and sin
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;                        // yarn
  bool truncate = true;                                        // yarn
  double sharpening = 1;  // yarn: of scores, where the model takes it from "mscale_all_dim" (DeepSeek)
  std::vector<double> short_factors, long_factors;  // longrope, dim / 2 each
  double rotated_share = 1;                         // proportional: of the frequencies; the others are 0

  std::string irregular;  // why keys turn by more than their place in the text; empty: they do not

  /// Plain RoPE over whole heads of this size.
  [[nodiscard]] bool plain(int head_dim) const { return type == "default" && dim == head_dim && !interleaved; }
};

/// Returns theta^(-2 i / dim) and what the variant makes of it, in radians a position, (dim / 2). Powers in fp32, as
/// models are trained. end: of a text that begins at 0, which some variants depend on.
[[nodiscard]] std::vector<float> inverse_frequencies(const RopeSpec& spec, std::int64_t end);

enum class MixerKind { kAttention, kLatentAttention, kGatedDelta };
enum class HeadNorm { kNone, kPerHead, kAllHeads };

/// How tokens see each other.
struct MixerSpec {
  MixerKind kind = MixerKind::kAttention;
  int num_heads = 0, num_kv_heads = 0;
  int head_dim = 0, value_dim = 0;
  int window = 0;            // token i sees token j if i - j < window; 0 = all before
  double softmax_scale = 0;  // of q . k
  double soft_cap = 0;       // scores s become cap * tanh(s / cap); 0 = none
  bool sinks = false;        // a learned score per head that takes part in the softmax and has no value
  bool output_gate = false;  // q_proj yields (q, gate) per head; outputs are multiplied with sigmoid(gate)
  bool qkv_bias = false, output_bias = false;
  HeadNorm head_norm = HeadNorm::kNone;  // of q and k, before RoPE
  bool norm_after_rope = false;          // kPerHead: behind it
  std::string query_norm = "self_attn.q_norm", key_norm = "self_attn.k_norm";
  double query_growth =
      0;  // q at position t is multiplied with 1 + query_growth ln(1 + floor(t / rope's first context))
  bool value_norm = false;    // of v, without a weight
  bool value_is_key = false;  // v = what k_proj yields, before its norm and RoPE
  std::string fused;          // one matrix for q, k and v
  // Keys and values that several layers read: which layer makes them (-1: nobody else reads), and whether this is it.
  int kv_layer = -1;
  bool own_kv = true;
  RopeSpec rope;
  // Latent attention: k = (latent, rope) and v = latent of one head, queries of all heads.
  int latent_dim = 0, query_latent_dim = 0, nope_dim = 0, head_value_dim = 0;
  // Gated delta rule: num_kv_heads key heads of head_dim, num_heads value heads of value_dim.
  int conv_width = 0;
  bool fused_delta = false;  // in_proj_qkvz and in_proj_ba, grouped by key head
};

enum class Activation { kSilu, kGelu, kGeluTanh, kRelu, kClampedSwish, kSquaredRelu, kXielu };
enum class Router { kSoftmax, kSoftmaxOfChosen, kSigmoid };
/// kStackedParts: stacks of gate, up and down, (out, in) each, as GGUF has them. kStackedByInput: stacks of (in, out).
/// kStackedTransposed: the same with biases, and gate and up in turns (gpt-oss).
enum class ExpertLayout { kSeparate, kStackedParts, kStacked, kStackedByInput, kStackedTransposed, kMxfp4 };

/// A routed mixture beside or instead of a dense MLP. count 0: none.
struct ExpertsSpec {
  int count = 0, top_k = 0, intermediate = 0;
  Router router = Router::kSoftmax;
  bool normalize = false;  // chosen weights sum to 1
  double scale = 1;        // of the weights
  int groups = 1, top_groups = 1;
  int group_votes = 2;                         // a group counts as much as its best so many scores together
  std::string gate = "mlp.gate", choice_bias;  // the bias counts for the choice only
  bool gate_bias = false;
  ExpertLayout layout = ExpertLayout::kSeparate;
  bool bias = false;  // of kStackedParts
  std::string prefix = "mlp.experts", gate_proj = "gate_proj", up_proj = "up_proj", down_proj = "down_proj";
  std::string shared, shared_gate;  // an expert for all tokens, and the projection to its weight
  int shared_intermediate = 0;
  // Gemma 4. The router reads hidden states normed without a weight, times this vector / sqrt(hidden_size); each expert
  // has a factor on its weights; routed experts read through a norm of their own; and what they and the shared expert
  // give is normed before it is added.
  std::string router_scale, expert_scale, input_norm, routed_norm, shared_norm;
};

struct MlpSpec {
  Activation activation = Activation::kSilu;
  int intermediate = 0;
  bool bias = false;
  std::string gate = "mlp.gate_proj", up = "mlp.up_proj", down = "mlp.down_proj";  // without a gate: down(act(up(x)))
  std::string fused;                                                               // one matrix for gate and up
  std::string activation_prefix;                                                   // kXielu: of its two learned numbers
  double clamp = 7, alpha = 1.702;                                                 // kClampedSwish
  ExpertsSpec experts;
};

/// hidden += mixer_out_norm(mixer(mixer_norm(hidden))); hidden += mlp_out_norm(mlp(mlp_norm(hidden)));
/// if input_dim > 0: hidden += norm(project(activation(gate(hidden)) * input)); hidden *= scalar
struct BlockSpec {
  MixerSpec mixer;
  MlpSpec mlp;
  std::string mixer_norm = "input_layernorm", mixer_out_norm;
  std::string mlp_norm = "post_attention_layernorm", mlp_out_norm;
  std::string scalar;
  std::set<std::string> biased;  // matrices that have a bias, beside those that the specs above name
  bool parallel = false;         // the MLP reads the hidden states that the mixer reads
  double residual_scale = 1;     // of what the mixer and the MLP add
  // Tokens have an embedding of input_dim channels for each layer, and this layer's is number input_index. The input is
  // (norm(projected) + embedding * sqrt(input_dim)) / sqrt(2), where `projected` is of the tokens' first hidden states,
  // / sqrt(hidden_size).
  int input_dim = 0, input_index = 0;

  [[nodiscard]] bool attends() const { return mixer.kind != MixerKind::kGatedDelta; }
  /// Whether the layer has keys and values of its own that grow with the text, and softmax attention over them.
  [[nodiscard]] bool has_cache() const { return attends() && mixer.own_kv; }
};

struct ModelConfig {
  std::string model_type;
  std::string torch_dtype;  // "bfloat16" …; the type dumps are written in
  int hidden_size = 0;
  int num_layers = 0;
  // Of the layers that keep a cache.
  int num_attention_heads = 0;
  int num_key_value_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int max_position_embeddings = 0;
  double rms_norm_eps = 0;
  bool norm_plus_one = false;  // norms multiply with 1 + weight
  bool layer_norm = false;     // norms subtract the mean first
  bool norm_bias = false;      // and add a bias
  double embedding_scale = 1;  // of token embeddings
  double logit_scale = 1;
  double logit_soft_cap = 0;  // 0 = none
  int layer_input_vocab = 0;  // of the embeddings that tokens have for each layer (BlockSpec::input_dim)
  bool tie_word_embeddings = false;
  bool own_head = true;           // the checkpoint has a head beside the embedding
  bool fp8 = false;               // matrices may be float8 with scales beside them
  std::vector<BlockSpec> blocks;  // num_layers
  ModelIdentity identity;
  std::vector<std::string> notices;  // what users should know of how the file was read

  [[nodiscard]] const BlockSpec& block(int layer) const { return blocks.at(static_cast<std::size_t>(layer)); }
  /// Why the attention of its layers cannot be replaced by that of a set (AttentionHook); empty if it can.
  [[nodiscard]] std::string why_irreplaceable() const;
  /// The layers whose cache grows with the whole text; if all are limited to a window, those.
  [[nodiscard]] std::vector<int> cache_layers() const;
  /// The layer whose keys and values `layer` reads: itself, unless it shares those of an earlier one.
  [[nodiscard]] int cache_of(int layer) const {
    return block(layer).mixer.own_kv ? layer : block(layer).mixer.kv_layer;
  }
  /// The layers whose keys and values later layers read, too.
  [[nodiscard]] std::vector<int> shared_layers() const {
    std::vector<int> shared;
    for (std::size_t layer = 0; layer < blocks.size(); ++layer) {
      const int source = blocks[layer].mixer.kv_layer;
      if (source == static_cast<int>(layer)) shared.push_back(source);
    }
    return shared;
  }
};

/// Returns the SHA-256 of what changes queries, keys, values or predictions, other than weights: the same for a
/// checkpoint and for GGUF files of it. The size of the vocabulary and whether the head is tied are left out, since
/// converters cut the one and copy the other. The numbers of the enumerators above are part of it.
[[nodiscard]] std::string config_sha256(const ModelConfig& config);

/// Reads `<model>/config.json`, or the metadata of a GGUF file. Throws DataError: missing or malformed file or member,
/// an architecture that is not supported (the message lists those that are), a setting of it that is not.
[[nodiscard]] ModelConfig read_model_config(const std::filesystem::path& model);

}  // namespace oscar
