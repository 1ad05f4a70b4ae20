// SPDX-License-Identifier: MIT
#include "model/gguf/gguf_model.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <regex>

#include "base/errors.hpp"
#include "base/sha256.hpp"
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

std::string GgufModel::config_sha256() const {
  Sha256 hash;
  for (const GgufEntry& entry : metadata().entries()) {
    if (entry.key != "general.architecture" && !entry.key.starts_with(architecture_ + ".")) continue;
    hash.update(std::as_bytes(std::span(entry.key)));
    hash.update(std::as_bytes(std::span(&entry.type, 1)));
    hash.update(entry.value);
  }
  return hash.hex();
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
  /// Members that metadata lacks and the model type has no default for.
  const char* members = "{}";
};

constexpr std::array kGgufArchitectures{
    GgufArchitecture{"gemma2", "gemma2"},
    GgufArchitecture{"gemma3", "gemma3_text"},
    GgufArchitecture{"glm4", "glm4"},
    GgufArchitecture{"gpt-oss", "gpt_oss"},
    GgufArchitecture{"llama", "llama"},  // or Mixtral, which has experts
    GgufArchitecture{"phi3", "phi3"},
    GgufArchitecture{"qwen2", "qwen2"},
    GgufArchitecture{"qwen2moe", "qwen2_moe", R"({"norm_topk_prob": false})"},
    GgufArchitecture{"qwen3", "qwen3"},
    GgufArchitecture{"qwen3moe", "qwen3_moe", R"({"norm_topk_prob": true})"},
};

const GgufArchitecture& gguf_architecture_of(const GgufModel& model) {
  const auto* const found = std::ranges::find_if(
      kGgufArchitectures, [&](const GgufArchitecture& each) { return model.architecture() == each.name; });
  if (found != kGgufArchitectures.end()) return *found;
  std::string names;
  for (const GgufArchitecture& each : kGgufArchitectures) names += (names.empty() ? "" : ", ") + std::string(each.name);
  throw DataError("the architecture \"" + model.architecture() + "\" is not supported in GGUF", model.where(),
                  "use a GGUF file of one of: " + names + "; or the Hugging Face checkpoint that it was made from");
}

/// Metadata of the architecture, checked.
class Metadata {
 public:
  explicit Metadata(const GgufModel& model) : model_(model) {}

  [[nodiscard]] bool has(const std::string& name) const { return !model_.value(name).is_null(); }
  /// A number, or a list of one number for all layers.
  [[nodiscard]] Json number(const std::string& name) const {
    Json value = model_.value(name);
    if (value.is_array() && !value.empty()) {
      const bool same = std::ranges::all_of(value, [&](const Json& each) { return each == value.front(); });
      if (!same) refuse(name, "differs between layers, which is not supported");
      value = Json(value.front());
    }
    if (!value.is_number()) refuse(name, value.is_null() ? "is missing" : "is not a number");
    return value;
  }
  [[nodiscard]] Json number(const std::string& name, const Json& otherwise) const {
    return has(name) ? number(name) : otherwise;
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
    return model_.tensors().at(name).file->read(name).to_doubles();
  }
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const {
    throw DataError("the metadata " + model_.architecture() + "." + name + " " + what, model_.where(),
                    "use another GGUF file of the model, or its Hugging Face checkpoint");
  }

 private:
  const GgufModel& model_;
};

/// The extension of RoPE to longer texts: by factors of each frequency, or by a rule.
Json rope_scaling(const GgufModel& model, const Metadata& metadata) {
  const Json context = metadata.number("rope.scaling.original_context_length", metadata.number("context_length"));
  if (metadata.has_tensor("rope_freqs.weight")) {  // Llama 3's rule, worked out
    const Json factors = metadata.floats("rope_freqs.weight");
    return {{"rope_type", "longrope"}, {"short_factor", factors}, {"long_factor", factors}, {"attention_factor", 1.0}};
  }
  if (metadata.has_tensor("rope_factors_long.weight")) {
    Json scaling{{"rope_type", "longrope"},
                 {"short_factor", metadata.floats("rope_factors_short.weight")},
                 {"long_factor", metadata.floats("rope_factors_long.weight")},
                 {"original_max_position_embeddings", context}};
    if (metadata.has("rope.scaling.attn_factor")) {
      scaling["attention_factor"] = metadata.number("rope.scaling.attn_factor");
    }
    return scaling;
  }
  const Json type = model.value("rope.scaling.type");
  if (type.is_null() || type == "none") return nullptr;
  if (type != "linear" && type != "yarn") metadata.refuse("rope.scaling.type", gguf_text(type) + " is not supported");
  Json scaling{{"rope_type", type}, {"factor", metadata.number("rope.scaling.factor")}};
  if (type == "linear") return scaling;
  scaling["original_max_position_embeddings"] = context;
  scaling["beta_fast"] = metadata.number("rope.scaling.yarn_beta_fast", 32);
  scaling["beta_slow"] = metadata.number("rope.scaling.yarn_beta_slow", 1);
  if (model.architecture() == "gpt-oss") scaling["truncate"] = false;
  return scaling;
}

void add_experts(const Metadata& metadata, Json& config) {
  const Json count = metadata.number("expert_count", 0);
  if (count == 0) return;
  config["num_experts"] = config["num_local_experts"] = count;
  config["num_experts_per_tok"] = metadata.number("expert_used_count");
  config["moe_intermediate_size"] = metadata.number("expert_feed_forward_length", config["intermediate_size"]);
  if (config["model_type"] == "gpt_oss") config["intermediate_size"] = config["moe_intermediate_size"];
  if (config["model_type"] == "llama") config["model_type"] = "mixtral";
  if (metadata.has("expert_shared_feed_forward_length")) {
    config["shared_expert_intermediate_size"] = metadata.number("expert_shared_feed_forward_length");
  }
}

/// Windows, caps and scales of Gemma's attention.
void add_gemma(const GgufModel& model, const Metadata& metadata, Json& config) {
  if (!model.architecture().starts_with("gemma")) return;
  const bool third = model.architecture() == "gemma3";
  const bool largest = config["num_hidden_layers"] == (third ? 62 : 46);
  config["query_pre_attn_scalar"] =
      largest ? config["hidden_size"].get<double>() / config["num_attention_heads"].get<double>()
              : config["head_dim"].get<double>();
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (metadata.has(cap)) config[cap] = metadata.number(cap);
  }
  if (third) config["rope_local_base_freq"] = metadata.number("rope.freq_base_swa", 10000.0);
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
  Json config = Json::parse(architecture.members);
  config["model_type"] = architecture.model_type;
  config["torch_dtype"] = type_of_rows(embedding);
  config["vocab_size"] = embedding.dims[1];
  config["hidden_size"] = metadata.number("embedding_length");
  config["num_hidden_layers"] = metadata.number("block_count");
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
  const auto rotated = metadata.number("rope.dimension_count", config["head_dim"]).get<double>();
  if (const auto dim = config["head_dim"].get<double>(); rotated < dim) config["partial_rotary_factor"] = rotated / dim;
  config["attention_bias"] = metadata.has_tensor("blk.0.attn_q.bias");
  config["mlp_bias"] = metadata.has_tensor("blk.0.ffn_up.bias");
  config["tie_word_embeddings"] = !metadata.has_tensor("output.weight");
  if (const Json window = metadata.number("attention.sliding_window", 0); window > 0) config["sliding_window"] = window;
  if (const Json scaling = rope_scaling(model, metadata); !scaling.is_null()) config["rope_scaling"] = scaling;
  add_experts(metadata, config);
  add_gemma(model, metadata, config);
  return config;
}

}  // namespace oscar
