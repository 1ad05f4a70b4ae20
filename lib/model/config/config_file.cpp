// SPDX-License-Identifier: MIT
#include "model/config/config_file.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "base/errors.hpp"
#include "base/files.hpp"

namespace oscar {

/// The text of class_members.json.
[[nodiscard]] std::string_view class_members_source();

namespace {

constexpr int kMaxDimension = 1 << 24;  // beyond any model; keeps products of two dimensions inside 64 bits

/// What transformers' config classes know.
const Json& class_table() {
  static const Json table = Json::parse(class_members_source());
  return table;
}

/// Whether a name is of training, generation or publishing, or of what lies outside the layers.
bool cannot_matter(std::string_view name) {
  return std::ranges::any_of(class_table().at("harmless"), [&](const Json& entry) {
    const std::string_view known = entry.get_ref<const std::string&>();
    if (known.front() == '*') return name.ends_with(known.substr(1));
    return known.back() == '*' ? name.starts_with(known.substr(0, known.size() - 1)) : name == known;
  });
}

/// Whether a value switches nothing on.
bool is_off(const Json& value) { return value.is_null() || value == false || (value.is_structured() && value.empty()); }

std::string rope_type(const ConfigFile& in) {
  const Json &type = in.has("rope_type") ? in.at("rope_type") : in.at("type"), &other = in.at("type");
  if (!other.is_null() && other != type) {
    in.notice("the RoPE type " + type.dump() + " is taken; \"type\": " + other.dump() +
              ", which stands beside it, is not");
  }
  if (type.is_null()) return "default";
  if (!type.is_string()) in.refuse("the RoPE type must be a text, found " + type.dump());
  return type.get<std::string>();
}

std::vector<double> rope_factors(const ConfigFile& in, const char* name, int count) {
  const Json& list = in.at(name);
  if (!list.is_array() || list.size() != static_cast<std::size_t>(count)) {
    in.refuse(std::string("member \"") + name + "\" must be a list of " + std::to_string(count) + " numbers");
  }
  std::vector<double> factors;
  for (const Json& value : list) {
    if (!value.is_number() || !(value.get<double>() > 0)) in.refuse(std::string(name) + " must be positive");
    factors.push_back(value.get<double>());
  }
  return factors;
}

void read_yarn(const ConfigFile& in, RopeSpec& rope) {
  rope.beta_fast = in.positive("beta_fast", 32);
  rope.beta_slow = in.positive("beta_slow", 1);
  rope.truncate = in.flag("truncate", true);
  (void)in.at("max_position_embeddings");  // which Ministral 3's class writes there, too
  const bool all = in.has("mscale_all_dim") && in.at("mscale_all_dim") != 0;
  const double of_all = all ? yarn_scale(rope.factor, in.positive("mscale_all_dim")) : 1;
  const double inferred = all && in.has("mscale") && in.at("mscale") != 0
                              ? yarn_scale(rope.factor, in.positive("mscale")) / of_all
                              : yarn_scale(rope.factor);
  rope.attention_factor = in.positive("attention_factor", inferred);
  if (all) rope.sharpening = std::pow(of_all, 2);
}

void read_longrope(const ConfigFile& in, RopeSpec& rope) {
  rope.short_factors = rope_factors(in, "short_factor", rope.dim / 2);
  rope.long_factors = rope_factors(in, "long_factor", rope.dim / 2);
  const double inferred = rope.factor <= 1 ? 1 : std::sqrt(1 + std::log(rope.factor) / std::log(rope.original_context));
  rope.attention_factor = in.positive("attention_factor", inferred);
}

}  // namespace

ConfigFile::ConfigFile(const std::filesystem::path& path) : ConfigFile(read_json(path), path.string()) {}

ConfigFile::ConfigFile(Json document, std::string where) : path_(std::move(where)), json_(std::move(document)) {
  if (!json_.is_object()) refuse("is not a JSON object");
  if (!json_.contains("text_config") || json_.at("text_config").is_null()) return;
  Json inner = json_.at("text_config");
  if (!inner.is_object()) refuse("member \"text_config\" must be an object");
  for (const char* shared : {"torch_dtype", "dtype", "tie_word_embeddings", "quantization_config"}) {
    const bool decides = std::string_view(shared) == "tie_word_embeddings";  // the larger model has the head
    if ((decides || !inner.contains(shared)) && json_.contains(shared)) inner[shared] = json_.at(shared);
  }
  outer_ = std::exchange(json_, std::move(inner));
  outer_.erase("tie_word_embeddings");
}

ConfigFile ConfigFile::part(const std::string& name, Json members) const {
  if (!members.is_object()) refuse("member \"" + name + "\" must be an object");
  ConfigFile inner(Json::object(), path_);
  inner.prefix_ = name + ".";
  inner.json_ = log_->parts[inner.prefix_] = std::move(members);
  inner.log_ = log_;
  return inner;
}

void ConfigFile::use_class(const std::string& model_type) {
  const std::string own = class_table().at("same_class").value(model_type, model_type);
  const Json same_names = class_table().at("same_name").value(own, Json::object());
  for (const auto& [other, member] : same_names.items()) {
    if (!has(other.c_str())) continue;
    const auto& name = member.get_ref<const std::string&>();
    if (json_.contains(name) && json_.at(name) != json_.at(other)) {
      refuse("members \"" + name + "\" and \"" + other + "\" are one thing, and differ",
             "take out the one that is not true");
    }
    json_[name] = json_.at(other);
    json_.erase(other);
  }
  use_members(class_table().at("members").at(own));
}

void ConfigFile::use_members(Json members) {
  class_ = std::move(members);
  const Json told = std::exchange(json_, class_);
  for (const auto& [name, value] : told.items()) {
    if (class_value(name.c_str()).is_object() && value.is_null()) continue;
    (of_class(name.c_str()) || cannot_matter(name) ? json_ : unknown_)[name] = value;
  }
}

const Json& ConfigFile::at(const char* name) const {
  static const Json none;
  log_->read.insert(prefix_ + name);
  const auto member = json_.find(name);
  return member == json_.end() ? none : *member;
}

int ConfigFile::dimension(const char* name) const {
  const Json& member = at(name);
  if (member.is_null()) refuse("has no member \"" + prefix_ + name + "\"");
  if (!member.is_number_integer() || member < 1 || member > kMaxDimension) {
    refuse("member \"" + prefix_ + name + "\" must be a positive whole number, found " + member.dump());
  }
  return member.get<int>();
}

double ConfigFile::positive(const char* name) const {
  const Json& member = at(name);
  if (!member.is_number() || !(member.get<double>() > 0) || !std::isfinite(member.get<double>())) {
    refuse("member \"" + prefix_ + name + "\" must be a positive number");
  }
  return member.get<double>();
}

bool ConfigFile::flag(const char* name, bool otherwise) const {
  if (!has(name)) return otherwise;
  if (!at(name).is_boolean()) refuse("member \"" + prefix_ + name + "\" must be true or false");
  return at(name).get<bool>();
}

std::string ConfigFile::text(const char* name, const std::string& otherwise) const {
  if (!has(name)) return otherwise;
  if (!at(name).is_string()) refuse("member \"" + prefix_ + name + "\" must be a text, found " + at(name).dump());
  return at(name).get<std::string>();
}

void ConfigFile::refuse(const std::string& what, const std::string& remedy) const {
  throw DataError(what, path_, remedy);
}

void ConfigFile::unsupported(const std::string& what) const {
  refuse(what + " is not supported", "use a checkpoint without it, or dump its q, k and v elsewhere and give --dump");
}

void ConfigFile::unsupported_member(const std::string& name) const {
  unsupported("\"" + prefix_ + name + "\": " + at(name.c_str()).dump() + " in this model");
}

std::vector<std::string> ConfigFile::check_members() const {
  for (const auto& [name, value] : class_.items()) {
    const Json& own = json_.at(name);
    if (!log_->read.contains(name) && own != value && !(is_off(own) && is_off(value))) unsupported_member(name);
    if (outer_.contains(name) && outer_.at(name) != own) {
      notice("\"" + name + "\" is taken from \"text_config\"; what stands outside differs (" + path_ + ")");
    }
  }
  std::string unread;
  const auto list = [&](const std::string& prefix, const Json& members) {
    for (const auto& [name, value] : members.items()) {
      if ((!prefix.empty() && log_->read.contains(prefix + name)) || cannot_matter(name) || is_off(value)) continue;
      unread += (unread.empty() ? "\"" : ", \"") + prefix + name + "\"";
    }
  };
  list("", unknown_);
  for (const auto& [prefix, members] : log_->parts) list(prefix, members);
  if (!unread.empty()) {
    notice("these members are not read, since transformers has none of them for this model_type: " + unread + " (" +
           path_ + ")");
  }
  return log_->notices;
}

ConfigFile rope_members(const ConfigFile& file, const std::string& layer_type, bool layered) {
  const Json &newer = file.at("rope_parameters"), &older = file.at("rope_scaling");
  const bool replaced = !layered && !older.empty();
  if (replaced && !newer.is_null() && newer != file.class_value("rope_parameters")) {
    file.notice("\"rope_scaling\" is taken, as transformers does; \"rope_parameters\", which stands beside it, is not");
  }
  const std::string name = replaced ? "rope_scaling" : "rope_parameters";
  const Json& members = replaced ? older : newer;
  ConfigFile all = file.part(name, members.is_null() ? Json::object() : members);
  Json own = file.of_class("layer_types") ? all.at(layer_type.c_str()) : Json();
  if (own.is_null() && !layered) return all;
  if (own.is_null()) own = Json::object();
  if (layered && !older.is_null() && layer_type == "full_attention") {
    if (!older.is_object() || (older.contains("type") && !older.contains("rope_type"))) {
      file.refuse(
          "\"rope_scaling\" must be an object with a \"rope_type\", since servers read \"type\" differently here",
          "write \"rope_type\" in its place");
    }
    own.update(older);
  }
  return file.part(name + "." + layer_type, own);
}

double yarn_scale(double factor, double weight) { return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1; }

RopeSpec read_rope(const ConfigFile& file, const std::string& layer_type, int head_dim,
                   std::optional<double> sliding_theta) {
  const ConfigFile in = rope_members(file, layer_type, sliding_theta.has_value());
  const double theta =
      sliding_theta && layer_type == "sliding_attention" ? *sliding_theta : file.positive("rope_theta");
  RopeSpec rope;
  rope.type = rope_type(in);
  if (rope.type == "su") rope.type = "longrope";    // its first name
  if (rope.type == "mrope") rope.type = "default";  // axes of images; on text all are equal
  if (rope_type(in) == "mrope" || in.has("mrope_section")) rope.irregular = "tokens of images have other positions";
  if (rope.type == "dynamic" && !in.has("alpha")) rope.irregular = "frequencies change with the length (dynamic NTK)";
  rope.theta = in.positive("rope_theta", theta);
  if (!sliding_theta && rope.theta != theta && theta != file.class_value("rope_theta")) {
    file.notice(
        fmt::format("the RoPE base {} is taken; \"rope_theta\": {}, which stands outside, is not", rope.theta, theta));
  }
  if (rope.type == "dynamic" && file.text("model_type", "").starts_with("hunyuan") && in.has("alpha")) {
    rope.theta *= std::pow(in.positive("alpha"), head_dim / (head_dim - 2.0));
    rope.type = "default";
  }
  // Its base grows with texts that are longer than the context, which are refused.
  if (rope.type == "dynamic" && !in.has("alpha")) rope.type = "default";
  const bool parts = file.of_class("partial_rotary_factor") || rope.type == "proportional";
  const double turning = file.dimension("rotary_dim", head_dim) / (1.0 * head_dim);
  const double partial =
      parts ? in.positive("partial_rotary_factor", file.positive("partial_rotary_factor", turning)) : 1;
  if (partial > 1) file.refuse("member \"partial_rotary_factor\" must be at most 1");
  rope.dim = rope.type == "proportional" ? head_dim : static_cast<int>(head_dim * partial);
  rope.rotated_share = rope.type == "proportional" ? partial : 1;
  if (rope.dim % 2 != 0 || rope.dim == 0) file.refuse("head_dim must be even for RoPE");
  const double context = file.dimension("max_position_embeddings");
  rope.original_context =
      file.positive("original_max_position_embeddings", in.positive("original_max_position_embeddings", context));
  const double stretched = context / rope.original_context;
  (void)in.at("factor");  // which "dynamic" has, too
  if (rope.type == "llama3") {
    rope.factor = in.positive("factor");
    rope.low_frequency_factor = in.positive("low_freq_factor");
    rope.high_frequency_factor = in.positive("high_freq_factor");
  } else if (rope.type == "yarn") {
    rope.factor = context == rope.original_context ? in.positive("factor") : in.positive("factor", stretched);
    read_yarn(in, rope);
  } else if (rope.type == "longrope") {
    rope.factor = in.positive("factor", stretched);
    read_longrope(in, rope);
  } else if (rope.type == "linear" || rope.type == "proportional") {
    rope.factor = rope.type == "linear" ? in.positive("factor") : in.positive("factor", 1);
  } else if (rope.type != "default") {
    file.refuse(
        "the RoPE variant \"" + rope.type + "\" is not supported",
        "use a checkpoint with default, linear, dynamic, llama3, yarn, longrope or proportional, or dump its q, k "
        "and v elsewhere and give --dump");
  }
  return rope;
}

}  // namespace oscar
