// SPDX-License-Identifier: MIT
#include "toml_options.hpp"

#include <toml++/toml.h>

#include <sstream>

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

[[noreturn]] void refuse(const std::string& what, const std::string& file, const toml::source_region& where) {
  throw UsageError(what, file + ", line " + std::to_string(where.begin.line),
                   "write strings in quotes, and each name once in its section");
}

/// parents: the names of the tables that it is in.
void add_items(const toml::table& table, const std::vector<std::string>& parents, const std::string& file,
               std::vector<CLI::ConfigItem>& items) {
  for (const auto& [key, value] : table) {
    CLI::ConfigItem item{parents, std::string(key.str()), {}};
    if (item.name == "++" || item.name == "--") refuse("there is no option \"" + item.name + "\"", file, key.source());
    if (const toml::table* const below = value.as_table()) {
      std::vector<std::string> path = parents;
      path.push_back(item.name);
      items.push_back({path, "++", {}});  // CLI11's word for the beginning of a section
      add_items(*below, path, file, items);
      continue;
    }
    if (const toml::array* const array = value.as_array()) {
      if (array->empty()) refuse("\"" + item.name + "\" is an empty list", file, value.source());
      for (const toml::node& each : *array) {
        if (!each.is_value()) refuse("\"" + item.name + "\" is a list of lists or tables", file, value.source());
        item.inputs.push_back(argument_of(each));
      }
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
  const std::string file = program_["--config"]->as<std::string>();
  try {
    add_items(toml::parse(text), {}, file, items);
  } catch (const toml::parse_error& error) {
    refuse("not valid TOML: " + std::string(error.description()), file, error.source());
  }
  names_.clear();
  for (const CLI::ConfigItem& item : items) {
    names_.emplace(item.parents.empty() ? "" : item.parents.back(), item.name);
  }
  return items;
}

}  // namespace oscar
