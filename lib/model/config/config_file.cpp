// SPDX-License-Identifier: MIT
#include "model/config/config_file.hpp"

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

}  // namespace oscar
