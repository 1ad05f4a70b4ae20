// SPDX-License-Identifier: MIT
// Members of config.json with errors that name the file, and rotary embeddings as it describes them, in older and newer
// spellings. And how each family of models is described: how config.json becomes blocks, as differences from Llama's
// block.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "model/config/config.hpp"

namespace oscar {

/// Of all layers together. Beyond any model: what is kept of each expert has to fit into memory.
inline constexpr int kMostModelExperts = 1 << 18;

class ConfigFile {
 public:
  /// The file's object, or its member "text_config" if it describes the language part of a larger model.
  explicit ConfigFile(const std::filesystem::path& path);
  /// Takes a document that does not lie in a file of its own. where: names it in errors.
  ConfigFile(Json document, std::string where);

  /// Takes the file for one of this model type: what it leaves out has the value of transformers' class, and what the
  /// class does not know is not read (class_members.json). Throws DataError if it tells one thing by two names that
  /// differ.
  void use_class(const std::string& model_type);
  /// The same with these members of a class.
  void use_members(Json members);
  /// Returns the value that the class gives; null if it has no such member.
  [[nodiscard]] Json class_value(const char* name) const { return class_.value(name, Json()); }
  [[nodiscard]] bool of_class(const char* name) const { return class_.contains(name); }

  /// Returns a member, null if there is none. What is asked for here and below counts as read.
  [[nodiscard]] const Json& at(const char* name) const;
  [[nodiscard]] bool has(const char* name) const { return !at(name).is_null(); }
  [[nodiscard]] const Json& all() const { return json_; }
  /// Returns an object in the file, `members`, which lies at `name`.
  [[nodiscard]] ConfigFile part(const std::string& name, Json members) const;
  /// Returns the positive whole number of this name. Throws DataError if there is none.
  [[nodiscard]] int dimension(const char* name) const;
  [[nodiscard]] int dimension(const char* name, int otherwise) const { return has(name) ? dimension(name) : otherwise; }
  /// Returns the whole number of this name, 0 if there is none. Throws DataError for anything else.
  [[nodiscard]] int dimension_or_zero(const char* name) const {
    return at(name) == 0 || !has(name) ? 0 : dimension(name);
  }
  /// Returns the positive, finite number of this name. Throws DataError if there is none.
  [[nodiscard]] double positive(const char* name) const;
  [[nodiscard]] double positive(const char* name, double otherwise) const {
    return has(name) ? positive(name) : otherwise;
  }
  [[nodiscard]] bool flag(const char* name, bool otherwise = false) const;
  /// Throws DataError for what is there and no text.
  [[nodiscard]] std::string text(const char* name, const std::string& otherwise) const;

  /// Says of what stands in two places which is taken.
  void notice(const std::string& text) const {
    if (std::ranges::find(log_->notices, text) == log_->notices.end()) log_->notices.push_back(text);
  }
  /// Returns what was said, and one notice of members that the class does not know. Throws DataError for a member of
  /// the class that nothing read and that has another value than the class gives.
  [[nodiscard]] std::vector<std::string> check_members() const;

  [[noreturn]] void refuse(const std::string& what,
                           const std::string& remedy = "look at this member, or fetch the checkpoint again") const;
  /// Throws DataError for a setting that this program does not know to execute.
  [[noreturn]] void unsupported(const std::string& what) const;
  /// The same, of a member with the value that it has.
  [[noreturn]] void unsupported_member(const std::string& name) const;

 private:
  struct Log {
    std::set<std::string> read;
    std::vector<std::string> notices;
    std::map<std::string, Json> parts;  // by name: objects in the file some of whose members were read
  };

  std::string path_, prefix_;
  Json json_, outer_, unknown_, class_ = Json::object();
  std::shared_ptr<Log> log_ = std::make_shared<Log>();
};

/// Returns what the file says of rotary embeddings in layers of this type: "rope_parameters", of one type if they are
/// nested, or "rope_scaling", as older files have it, which counts where both stand there, as in transformers. layered:
/// "rope_parameters" are nested, and "rope_scaling" is added to those of layers that see all (Gemma 3, OLMo 3).
[[nodiscard]] ConfigFile rope_members(const ConfigFile& file, const std::string& layer_type, bool layered = false);

/// Reads the rotary embedding of heads of `head_dim` channels in layers of this type ("full_attention",
/// "sliding_attention", …; matters only where the file tells them apart). sliding_theta: the base in layers that slide,
/// where these differ from the others (`layered`). Throws DataError: a type that is not supported, or a member that is
/// missing.
[[nodiscard]] RopeSpec read_rope(const ConfigFile& file, const std::string& layer_type, int head_dim,
                                 std::optional<double> sliding_theta = {});

/// 0.1 * weight * ln(factor) + 1: by how much YaRN sharpens attention for a longer context.
[[nodiscard]] double yarn_scale(double factor, double weight = 1);

/// Adds the members that the file leaves out, as transformers' class of this type does. Throws DataError that lists the
/// supported types if this is none.
void check_architecture(ConfigFile& file, const std::string& model_type);
/// Fills config.blocks and whatever else depends on the architecture; config has the common numbers already. Throws
/// DataError for a setting that is not supported.
void describe_architecture(const ConfigFile& file, ModelConfig& config);

struct Family {
  const char* model_type;
  void (*describe)(const ConfigFile&, ModelConfig&);
};
/// Families without experts, or with experts beside a dense MLP (families_dense.cpp).
[[nodiscard]] std::span<const Family> dense_families();
/// Mixtures of experts, and models that mix kinds of attention (families_experts.cpp).
[[nodiscard]] std::span<const Family> expert_families();

inline constexpr const char* kFullAttention = "full_attention";
inline constexpr const char* kSlidingAttention = "sliding_attention";
inline constexpr const char* kLinearAttention = "linear_attention";

/// Tells the type of each layer.
using LayerTypes = std::function<std::string(int layer)>;
[[nodiscard]] LayerTypes all_layers(const char* type);
/// Every layer whose number, counted from 1, is a multiple of `period` sees all; the others are of the type `between`.
[[nodiscard]] LayerTypes full_every(int period, const char* between);
/// All layers slide if there is a window.
[[nodiscard]] LayerTypes all_windowed(const ConfigFile& file);

/// Llama's block: RMS norms, rotary grouped-query attention, gated MLP; biases as "attention_bias" (of q, k, v and
/// outputs), "mlp_bias" and "use_bias" (of all) say.
[[nodiscard]] BlockSpec plain_block(const ConfigFile& file, const ModelConfig& config,
                                    const std::string& layer_type = kFullAttention);
/// The type of every layer; `otherwise` tells it where the file does not, or the class has no such member.
[[nodiscard]] std::vector<std::string> read_layer_types(const ConfigFile& file, const ModelConfig& config,
                                                        const LayerTypes& otherwise);
/// Gives all layers this block, with a window in those that slide. Refuses other types of layers.
void fill_blocks(const ConfigFile& file, ModelConfig& config, const BlockSpec& block,
                 const std::vector<std::string>& types);
/// The same with the types that read_layer_types() gives, which it returns.
std::vector<std::string> fill_blocks(const ConfigFile& file, ModelConfig& config, const BlockSpec& block,
                                     const LayerTypes& otherwise = all_layers(kFullAttention));
/// Layers that see all have no positions.
void drop_positions(ModelConfig& config, const std::vector<std::string>& types);

// Families that others differ from.
void fill_qwen(const ConfigFile& file, ModelConfig& config, const BlockSpec& block);
void describe_qwen2(const ConfigFile& file, ModelConfig& config);
void describe_qwen3(const ConfigFile& file, ModelConfig& config);
void describe_hunyuan(const ConfigFile& file, ModelConfig& config);
void describe_ernie(const ConfigFile& file, ModelConfig& config);

}  // namespace oscar
