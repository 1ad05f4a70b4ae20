// SPDX-License-Identifier: MIT
#include "model/config/config_file.hpp"

#include <cmath>
#include <string_view>

#include "base/errors.hpp"
#include "base/files.hpp"

namespace oscar {
namespace {

constexpr int kMaxDimension = 1 << 24;  // beyond any model; keeps products of two dimensions inside 64 bits

}  // namespace

ConfigFile::ConfigFile(const std::filesystem::path& path) : ConfigFile(read_json(path), path.string()) {}

ConfigFile::ConfigFile(Json document, std::string where) : path_(std::move(where)), json_(std::move(document)) {
  if (!json_.is_object()) refuse("is not a JSON object");
  if (!has("text_config")) return;
  Json inner = json_.at("text_config");
  if (!inner.is_object()) refuse("member \"text_config\" must be an object");
  for (const char* shared : {"torch_dtype", "dtype", "tie_word_embeddings", "quantization_config"}) {
    const bool decides = std::string_view(shared) == "tie_word_embeddings";  // the larger model has the head
    if ((decides || !inner.contains(shared)) && has(shared)) inner[shared] = json_.at(shared);
  }
  json_ = std::move(inner);
}

void ConfigFile::use_defaults(const Json& members) {
  for (const auto& [name, value] : members.items()) {
    if (!has(name.c_str())) json_[name] = value;
  }
}

bool ConfigFile::has(const char* name) const {
  const auto member = json_.find(name);
  return member != json_.end() && !member->is_null();
}

int ConfigFile::dimension(const char* name) const {
  const auto member = json_.find(name);
  if (member == json_.end()) refuse(std::string("has no member \"") + name + "\"");
  if (!member->is_number_integer() || *member < 1 || *member > kMaxDimension) {
    refuse(std::string("member \"") + name + "\" must be a positive whole number, found " + member->dump());
  }
  return member->get<int>();
}

double ConfigFile::positive(const Json& parent, const char* name) const {
  const auto member = parent.find(name);
  if (member == parent.end() || !member->is_number() || !(member->get<double>() > 0)) {
    refuse(std::string("member \"") + name + "\" must be a positive number");
  }
  return member->get<double>();
}

bool ConfigFile::flag(const char* name, bool otherwise) const {
  if (!has(name)) return otherwise;
  if (!json_.at(name).is_boolean()) refuse(std::string("member \"") + name + "\" must be true or false");
  return json_.at(name).get<bool>();
}

std::string ConfigFile::text(const char* name, const std::string& otherwise) const {
  const auto member = json_.find(name);
  return member != json_.end() && member->is_string() ? member->get<std::string>() : otherwise;
}

void ConfigFile::refuse(const std::string& what, const std::string& remedy) const {
  throw DataError(what, path_, remedy);
}

void ConfigFile::unsupported(const std::string& what) const {
  refuse(what + " is not supported", "use a checkpoint without it, or dump its q, k and v elsewhere and give --dump");
}

namespace {

/// "rope_parameters" (of one layer type, if it is nested), or "rope_scaling" as older files have it; else empty.
ConfigFile rope_members(const ConfigFile& file, const std::string& layer_type) {
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    if (!file.has(name)) continue;
    const Json& members = file.json().at(name);
    if (!members.is_object()) file.refuse(std::string("member \"") + name + "\" must be an object");
    const auto nested = members.find(layer_type);
    return file.part(nested != members.end() && nested->is_object() ? *nested : members);
  }
  return file.part(Json::object());
}

std::string rope_type(const ConfigFile& in) {
  const Json type = in.json().value("rope_type", in.json().value("type", Json("default")));
  if (!type.is_string()) in.refuse("the RoPE type must be a text, found " + type.dump());
  return type.get<std::string>();
}

std::vector<double> rope_factors(const ConfigFile& in, const char* name, int count) {
  const Json list = in.json().value(name, Json());
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
  const bool all = in.has("mscale_all_dim");
  const double of_all = all ? yarn_scale(rope.factor, in.positive("mscale_all_dim")) : 1;
  const double inferred =
      all && in.has("mscale") ? yarn_scale(rope.factor, in.positive("mscale")) / of_all : yarn_scale(rope.factor);
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

double yarn_scale(double factor, double weight) { return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1; }

RopeSpec read_local_rope(const ConfigFile& file, int head_dim) {
  const bool nested = file.has("rope_parameters") && file.json().at("rope_parameters").contains("sliding_attention");
  if (nested) return read_rope(file, "sliding_attention", head_dim, {10000});
  RopeSpec rope;
  rope.dim = head_dim;
  rope.theta = file.positive("rope_local_base_freq", 10000);
  return rope;
}

RopeSpec read_rope(const ConfigFile& file, const std::string& layer_type, int head_dim, const RopeDefaults& defaults) {
  const ConfigFile in = rope_members(file, layer_type);
  RopeSpec rope;
  rope.type = rope_type(in);
  if (rope.type == "su") rope.type = "longrope";    // its first name
  if (rope.type == "mrope") rope.type = "default";  // axes of images; on text all are equal
  // Its base grows with texts that are longer than the context, which are refused.
  if (rope.type == "dynamic" && !in.has("alpha")) rope.type = "default";
  rope.theta = in.positive("rope_theta", file.positive("rope_theta", defaults.theta));
  if (rope.type == "dynamic" && in.has("alpha") && defaults.alpha) {
    rope.theta *= std::pow(in.positive("alpha"), head_dim / (head_dim - 2.0));
    rope.type = "default";
  }
  if (!(rope.theta > 0)) file.refuse("member \"rope_theta\" must be a positive number");
  const double partial = in.positive("partial_rotary_factor", file.positive("partial_rotary_factor", defaults.partial));
  if (partial > 1) file.refuse("member \"partial_rotary_factor\" must be at most 1");
  rope.dim = rope.type == "proportional" ? head_dim : static_cast<int>(head_dim * partial);
  rope.rotated_share = rope.type == "proportional" ? partial : 1;
  if (rope.dim % 2 != 0 || rope.dim == 0) file.refuse("head_dim must be even for RoPE");
  const double context = file.dimension("max_position_embeddings");
  rope.original_context =
      file.positive("original_max_position_embeddings", in.positive("original_max_position_embeddings", context));
  const double stretched = context / rope.original_context;
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
