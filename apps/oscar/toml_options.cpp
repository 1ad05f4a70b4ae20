// SPDX-License-Identifier: MIT
#include "toml_options.hpp"

#include <toml++/toml.h>

#include <sstream>
#include <string>

#include "base/errors.hpp"

namespace oscar {
namespace {

/// As the command line has it.
std::string argument_of(const toml::node& value) {
  if (const auto* const text = value.as_string()) return text->get();
  std::ostringstream out;
  value.visit([&](const auto& each) { out << each; });
  return out.str();
}

/// parents: the names of the tables that it is in.
void add_items(const toml::table& table, const std::vector<std::string>& parents, std::vector<CLI::ConfigItem>& items) {
  for (const auto& [key, value] : table) {
    CLI::ConfigItem item{parents, std::string(key.str()), {}};
    if (const toml::table* const below = value.as_table()) {
      std::vector<std::string> path = parents;
      path.push_back(item.name);
      items.push_back({path, "++", {}});  // CLI11's word for the beginning of a section
      add_items(*below, path, items);
      continue;
    }
    if (const toml::array* const array = value.as_array()) {
      for (const toml::node& each : *array) item.inputs.push_back(argument_of(each));
    } else {
      item.inputs.push_back(argument_of(value));
    }
    if (item.name == "json" && value.is_boolean()) {  // a switch there, and the name of a file elsewhere
      if (!value.ref<bool>()) continue;
      item.inputs = {"-"};
    }
    items.push_back(std::move(item));
  }
}

}  // namespace

std::vector<CLI::ConfigItem> TomlOptions::from_config(std::istream& text) const {
  std::vector<CLI::ConfigItem> items;
  try {
    add_items(toml::parse(text), {}, items);
  } catch (const toml::parse_error& error) {
    throw UsageError("not valid TOML: " + std::string(error.description()),
                     program_["--config"]->as<std::string>() + ", line " + std::to_string(error.source().begin.line),
                     "strings stand in quotes, and each name stands once in its section");
  }
  return items;
}

}  // namespace oscar
