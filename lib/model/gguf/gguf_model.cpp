// SPDX-License-Identifier: MIT
#include "model/gguf/gguf_model.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <regex>
#include <set>
#include <string_view>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "tensor/tensor.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

/// "NAME-00001-of-00003" of a part's name without ".gguf": NAME, 1 and 3.
const std::regex kPart(R"((.*)-(\d{5})-of-(\d{5}))");

}  // namespace

GgufModel::GgufModel(const fs::path& path) : where_(path.string()) {
  open_parts(path);
  const std::optional<std::string> architecture = metadata().text("general.architecture");
  if (!architecture || architecture->empty()) {
    throw DataError("the GGUF file does not say what model it is of: general.architecture is missing", where_,
                    "name the file of a language model, as llama.cpp reads it");
  }
  architecture_ = *architecture;
  for (const auto& [name, file] : parts_) {
    for (const GgufTensor& tensor : file.tensors()) {
      if (tensors_.try_emplace(tensor.name, Place{&file, &tensor}).second) continue;
      throw DataError("two parts of the model have a tensor " + tensor.name, where_, "fetch all parts again");
    }
  }
}

void GgufModel::open_parts(const fs::path& path) {
  parts_.try_emplace(path.filename().string(), path);
  const Json count = metadata().value("split.count");
  if (!count.is_number_integer() || count <= 1) return;
  std::smatch match;
  const std::string stem = path.stem().string();
  if (!std::regex_match(stem, match, kPart)) {
    throw DataError(
        "the file is one of " + count.dump() + " parts, and its name does not say which", where_,
        "give the parts their names back: NAME-00001-of-" + fmt::format("{:05}", count.get<int>()) + ".gguf and so on");
  }
  const int parts = std::stoi(match[3].str());
  if (std::stoi(match[2].str()) != 1 || count != parts) {
    throw DataError("the file is not the first part of the model", where_,
                    fmt::format("name {}-00001-of-{:05}.gguf", match[1].str(), count.get<int>()));
  }
  for (int part = 2; part <= parts; ++part) {
    const std::string name = fmt::format("{}-{:05}-of-{:05}.gguf", match[1].str(), part, parts);
    parts_.try_emplace(name, path.parent_path() / name);
  }
}

Json GgufModel::value(const std::string& name) const {
  Json value = metadata().value(architecture_ + "." + name);
  const auto is_first = [&](const Json& each) { return each == value.front(); };
  if (value.is_array() && !value.empty() && std::ranges::all_of(value, is_first)) return Json(value.front());
  return value;
}

std::string gguf_model_name(const fs::path& path) {
  const std::string stem = path.stem().string();
  std::smatch match;
  return std::regex_match(stem, match, kPart) ? match[1].str() : stem;
}

namespace {

struct GgufArchitecture {
  const char* name;        // llama.cpp's
  const char* model_type;  // Hugging Face's
  int period = 0;          // every so manieth layer sees all, and others slide; 0: llama.cpp knows no windows
  /// What llama.cpp computes with and files do not tell, in config.json's terms.
  const char* members = "{}";
};

constexpr std::array kGgufArchitectures{
    GgufArchitecture{"gemma2", "gemma2", 2, R"({"hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096,
      "attn_logit_softcapping": 50, "final_logit_softcapping": 30})"},
    GgufArchitecture{"gemma3", "gemma3_text", 6, R"({"hidden_activation": "gelu_pytorch_tanh",
      "rope_local_base_freq": 10000, "sliding_window_pattern": 6, "sliding_window": 0})"},
    GgufArchitecture{"glm4", "glm4"},
    GgufArchitecture{"gpt-oss", "gpt_oss", 2, R"({"attention_bias": true, "swiglu_alpha": 1.702, "swiglu_limit": 7})"},
    GgufArchitecture{"llama", "llama"},  // or Mixtral, which has experts
    GgufArchitecture{"phi3", "phi3"},
    GgufArchitecture{"qwen2", "qwen2"},
    GgufArchitecture{"qwen2moe", "qwen2_moe", 0, R"({"norm_topk_prob": false, "qkv_bias": true})"},
    GgufArchitecture{"qwen3", "qwen3"},
    GgufArchitecture{"qwen3moe", "qwen3_moe", 0, R"({"norm_topk_prob": true})"},
};

const GgufArchitecture& gguf_architecture_of(const GgufModel& model) {
  const auto* const found = std::ranges::find_if(
      kGgufArchitectures, [&](const GgufArchitecture& each) { return model.architecture() == each.name; });
  if (found != kGgufArchitectures.end()) return *found;
  throw DataError("the architecture \"" + model.architecture() + "\" is not supported in GGUF", model.where(),
                  "use a GGUF file of one of: " + joined(kGgufArchitectures, ", ", &GgufArchitecture::name) +
                      "; or the Hugging Face checkpoint that it was made from");
}

/// Metadata of the architecture, checked. Remembers what was asked for.
class Metadata {
 public:
  explicit Metadata(const GgufModel& model) : model_(model) {}

  [[nodiscard]] Json value(const std::string& name) const {
    read_.insert(name);
    return model_.value(name);
  }
  [[nodiscard]] bool has(const std::string& name) const { return !value(name).is_null(); }
  /// A finite number, or a list of one number for all layers.
  [[nodiscard]] Json number(const std::string& name) const {
    const Json found = value(name);
    if (found.is_array()) refuse(name, "differs between layers, which is not supported");
    if (!found.is_number()) refuse(name, found.is_null() ? "is missing" : "is not a number");
    if (!std::isfinite(found.get<double>())) refuse(name, "is not finite");
    return found;
  }
  [[nodiscard]] Json number(const std::string& name, const Json& otherwise) const {
    return has(name) ? number(name) : otherwise;
  }
  /// Refuses another value than the one that is computed with.
  void require(const std::string& name, const Json& expected) const {
    const Json found = value(name);
    if (!found.is_null() && found != expected) refuse(name, "is " + gguf_text(found) + ", which is not supported");
  }
  /// Refuses what nobody asked for, unless it says nothing of what is computed or is switched off.
  void refuse_unread() const {
    static const std::set<std::string> harmless{"vocab_size", "pooling_type", "rope.scaling.finetuned",
                                                "tensor_data_layout"};
    const std::string prefix = model_.architecture() + ".";
    for (const GgufEntry& entry : model_.metadata().entries()) {
      if (!entry.key.starts_with(prefix)) continue;
      const std::string name = entry.key.substr(prefix.size());
      if (read_.contains(name) || harmless.contains(name)) continue;
      const Json found = model_.value(name);
      if (found == 0 || found == false || found == "") continue;
      refuse(name, "is " + gguf_text(found).substr(0, 80) + ", which is not supported in this architecture");
    }
  }
  [[nodiscard]] const GgufTensor& tensor(const std::string& name) const {
    const auto found = model_.tensors().find(name);
    if (found == model_.tensors().end()) {
      throw DataError("the GGUF file has no tensor " + name, model_.where(),
                      "fetch the file again, with all its parts");
    }
    return *found->second.tensor;
  }
  [[nodiscard]] bool has_tensor(const std::string& name) const { return model_.tensors().contains(name); }
  [[nodiscard]] Json floats(const std::string& name) const {
    (void)tensor(name);
    return model_.tensors().at(name).file->read(name).to_doubles();
  }
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const {
    throw DataError("the metadata " + model_.architecture() + "." + name + " " + what, model_.where(),
                    "use another GGUF file of the model, or its Hugging Face checkpoint");
  }

 private:
  const GgufModel& model_;
  mutable std::set<std::string> read_;
};

/// The extension of RoPE to longer texts: by factors of each frequency, or by a rule, which is "linear" where a file
/// names none.
Json rope_scaling(const Metadata& metadata) {
  const Json context = metadata.number("rope.scaling.original_context_length", metadata.number("context_length"));
  const Json type = metadata.has("rope.scaling.type") ? metadata.value("rope.scaling.type") : Json("linear");
  Json factor = metadata.number("rope.scaling.factor", metadata.number("rope.scale_linear", 0));
  if (factor == 0) factor = 1;
  const Json scale = metadata.number("rope.scaling.attn_factor", 1);
  const bool worked_out = metadata.has_tensor("rope_freqs.weight");  // Llama 3's rule
  const bool by_length =
      metadata.has_tensor("rope_factors_long.weight") || metadata.has_tensor("rope_factors_short.weight");
  if (factor != 1 && (worked_out || by_length || type == "none")) {
    metadata.refuse("rope.scaling.factor", "stands beside rope.scaling.type none or factors of each frequency");
  }
  if (type == "yarn" && !worked_out && !by_length) {
    metadata.require("rope.scaling.yarn_ext_factor", 1);
    metadata.require("rope.scaling.yarn_log_multiplier", 0);
    const double own = 1 + 0.1 * std::log(std::max(factor.get<double>(), 1.0));  // YaRN's, which llama.cpp multiplies
    return {{"rope_type", "yarn"},
            {"factor", factor},
            {"original_max_position_embeddings", context},
            {"beta_fast", metadata.number("rope.scaling.yarn_beta_fast", 32)},
            {"beta_slow", metadata.number("rope.scaling.yarn_beta_slow", 1)},
            {"attention_factor", metadata.number("rope.scaling.yarn_attn_factor", own * scale.get<double>())}};
  }
  if (type != "linear" && type != "none" && !(type == "longrope" && by_length)) {
    metadata.refuse("rope.scaling.type", "is " + gguf_text(type) + ", which is not supported with this file's tensors");
  }
  if (worked_out || by_length) {
    return {{"rope_type", "longrope"},
            {"short_factor", metadata.floats(worked_out ? "rope_freqs.weight" : "rope_factors_short.weight")},
            {"long_factor", metadata.floats(worked_out ? "rope_freqs.weight" : "rope_factors_long.weight")},
            {"original_max_position_embeddings", context},
            {"attention_factor", scale}};
  }
  metadata.require("rope.scaling.attn_factor", 1);
  if (factor == 1) return {{"rope_type", "default"}};
  return {{"rope_type", "linear"}, {"factor", factor}};
}

void add_experts(const Metadata& metadata, Json& config) {
  const Json count = metadata.number("expert_count", 0), used = metadata.number("expert_used_count", 0);
  if (count == 0) return;
  config["num_experts"] = config["num_local_experts"] = count;
  config["num_experts_per_tok"] = used;
  config["moe_intermediate_size"] = metadata.number("expert_feed_forward_length", config["intermediate_size"]);
  const bool gpt_oss = config["model_type"] == "gpt_oss";
  if (gpt_oss) config["intermediate_size"] = config["moe_intermediate_size"];
  if (config["model_type"] == "llama") config["model_type"] = "mixtral";
  metadata.require("expert_weights_norm", config.value("norm_topk_prob", true));
  metadata.require("expert_weights_scale", 1);
  metadata.require("expert_gating_func", gpt_oss ? 3 : 1);  // softmax, of those that were chosen
  if (metadata.has("expert_shared_feed_forward_length")) {
    config["shared_expert_intermediate_size"] = metadata.number("expert_shared_feed_forward_length");
  }
}

/// Which layers slide: all but each n-th, or as a list says.
void add_windows(const GgufModel& model, int period, const Metadata& metadata, Json& config) {
  if (period == 0) return;
  const char *key = "attention.sliding_window", *list = "attention.sliding_window_pattern";
  const Json usual = config.value("sliding_window", Json());  // 0: there may be none
  const Json window = usual.is_null() ? metadata.number(key) : metadata.number(key, usual);
  if (window <= 0 && usual != 0) metadata.refuse(key, "is " + gguf_text(window) + ", which is not supported");
  const Json pattern = metadata.has(list) ? model.metadata().value(model.architecture() + "." + list) : Json(period);
  const auto layers = config["num_hidden_layers"].get<std::size_t>();
  const bool fits = pattern.is_array() ? pattern.size() == layers : pattern.is_number_integer() && pattern >= 0;
  if (!fits) metadata.refuse(list, "is neither a number nor a list with an entry a layer");
  const auto slides = [&](std::size_t layer) {
    if (pattern.is_array()) return pattern[layer] == true || pattern[layer] == 1;
    return pattern == 0 || (layer + 1) % pattern.get<std::size_t>() != 0;
  };
  config["sliding_window"] = window > 0 ? window : Json();
  for (std::size_t layer = 0; layer < layers; ++layer) {
    config["layer_types"].push_back(window > 0 && slides(layer) ? "sliding_attention" : "full_attention");
  }
}

/// Caps and scales of Gemma's attention, and in Gemma 3 another angle where a window is.
void add_gemma(const GgufModel& model, const Metadata& metadata, Json& config) {
  if (!model.architecture().starts_with("gemma")) return;
  const bool third = model.architecture() == "gemma3";
  const bool largest = config["num_hidden_layers"] == (third ? 62 : 46);
  config["query_pre_attn_scalar"] =
      largest ? config["hidden_size"].get<double>() / config["num_attention_heads"].get<double>()
              : config["head_dim"].get<double>();
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (third && std::string_view(cap).starts_with("attn")) continue;
    if (const Json found = metadata.number(cap, config.value(cap, Json(0))); found != 0) config[cap] = found;
  }
  if (!third) return;
  metadata.require("rope.scaling.attn_factor", 1);  // which llama.cpp applies in sliding layers, too
  config["rope_local_base_freq"] = metadata.number("rope.freq_base_swa", config["rope_local_base_freq"]);
  Json full = config["rope_scaling"];
  full["rope_theta"] = config["rope_theta"];
  config["rope_parameters"] = {{"full_attention", full}};
  config.erase("rope_scaling");
}

const char* type_of_rows(const GgufTensor& embedding) {
  return embedding.type == 0 ? "float32" : embedding.type == 1 ? "float16" : "bfloat16";
}

}  // namespace

Json gguf_config(const GgufModel& model) {
  const GgufArchitecture& architecture = gguf_architecture_of(model);
  const Metadata metadata(model);
  const GgufTensor& embedding = metadata.tensor("token_embd.weight");
  if (embedding.dims.size() != 2) metadata.refuse("vocab_size", "cannot be told: token_embd.weight is no matrix");
  Json config{{"hidden_act", "silu"}, {"attention_bias", false}};
  config.update(Json::parse(architecture.members));
  config["model_type"] = architecture.model_type;
  config["torch_dtype"] = type_of_rows(embedding);
  config["vocab_size"] = embedding.dims[1];
  config["hidden_size"] = metadata.number("embedding_length");
  const Json layers = config["num_hidden_layers"] = metadata.number("block_count");
  if (!layers.is_number_integer() || layers < 1 || layers > kMostModelLayers) {
    metadata.refuse("block_count", "is " + gguf_text(layers) + ", which is not supported");
  }
  config["num_attention_heads"] = metadata.number("attention.head_count");
  config["num_key_value_heads"] = metadata.number("attention.head_count_kv", config["num_attention_heads"]);
  config["intermediate_size"] =
      metadata.number("feed_forward_length", metadata.number("expert_feed_forward_length", 1));
  config["max_position_embeddings"] = metadata.number("context_length");
  config["rms_norm_eps"] = metadata.number("attention.layer_norm_rms_epsilon");
  config["rope_theta"] = metadata.number("rope.freq_base", 10000.0);
  const auto heads = config["num_attention_heads"].get<double>(), hidden = config["hidden_size"].get<double>();
  config["head_dim"] =
      metadata.number("attention.key_length", static_cast<std::int64_t>(hidden / std::max(heads, 1.0)));
  metadata.require("attention.value_length", config["head_dim"]);
  metadata.require("attention.causal", true);
  const auto rotated = metadata.number("rope.dimension_count", config["head_dim"]).get<double>();
  const bool partial = architecture.model_type == std::string_view("glm4") || model.architecture() == "phi3";
  if (!partial) metadata.require("rope.dimension_count", config["head_dim"]);
  if (partial) config["partial_rotary_factor"] = rotated / config["head_dim"].get<double>();
  config["tie_word_embeddings"] = !metadata.has_tensor("output.weight");
  config["rope_scaling"] = rope_scaling(metadata);
  add_experts(metadata, config);
  add_windows(model, architecture.period, metadata, config);
  add_gemma(model, metadata, config);
  if (model.architecture() == "phi3") (void)metadata.value("attention.sliding_window");  // see gguf_notices
  metadata.refuse_unread();
  return config;
}

std::vector<std::string> gguf_notices(const GgufModel& model) {
  std::vector<std::string> notices;
  if (model.metadata().text("tokenizer.ggml.model") == "gpt2" && !model.metadata().text("tokenizer.ggml.pre")) {
    notices.emplace_back(
        "the file does not say how text is cut into words (tokenizer.ggml.pre is missing): it is cut as llama.cpp does "
        "then, which may be wrong");
  }
  const Json window = model.value("attention.sliding_window");
  if (model.architecture() == "phi3" && window.is_number() && window > 0) {
    notices.push_back("attention.sliding_window is " + gguf_text(window) +
                      ", and as in llama.cpp, which has no windows in this architecture, every layer sees all");
  }
  constexpr std::array<std::pair<const char*, int>, 3> kUnread{
      {{"attn_factor", 0}, {"beta_fast", 32}, {"beta_slow", 1}}};
  for (const auto& [name, usual] : kUnread) {
    const std::string key = std::string("rope.scaling.yarn_") + name;
    const Json found = model.value(key);
    if (found.is_null() || found == usual) continue;
    notices.push_back(key + " is " + gguf_text(found) + " and counts; llama.cpp does not read it in this architecture");
  }
  return notices;
}

}  // namespace oscar
