// SPDX-License-Identifier: MIT
#include "outputs.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.hpp"
#include "base/files.hpp"

namespace oscar {
namespace {

/// What the type of an option that names a file or folder has in it (help shows it).
constexpr std::array<std::string_view, 5> kPathTypes{"FILE", "DIR", "SET", "KEY", ".gguf"};

std::set<const CLI::Option*>& outputs() {
  static std::set<const CLI::Option*> options;
  return options;
}

struct Named {
  std::string option;
  fs::path path;  // as given
};

bool names_a_path(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const auto in_type = [&](std::string_view part) { return type.find(part) != std::string::npos; };
  return option.get_positional() || std::ranges::any_of(kPathTypes, in_type);
}

/// What the options of a command, and of the program, name: what is read and exists, and all that is written.
void collect_names(const CLI::App& command, std::vector<Named>& read, std::vector<Named>& written) {
  for (const CLI::Option* option : command.get_options()) {
    const bool output = outputs().contains(option);
    if (option->count() == 0 || !(output || names_a_path(*option))) continue;
    for (const std::string& text : option->results()) {
      std::error_code error;
      if (output && !text.empty() && text != "-") written.push_back({option->get_name(), text});
      if (!output && fs::exists(text, error)) read.push_back({option->get_name(), text});
    }
  }
  for (const CLI::App* named : command.get_subcommands()) collect_names(*named, read, written);
}

/// Why it may not be written; empty if it may.
std::string reason_against(const Named& output, const Named& input) {
  const std::string where = input.option + " " + input.path.string();
  if (fs::exists(output.path) && lies_in(output.path, input.path)) {
    return "it would be written over " + where + ", which this command reads";
  }
  if (!fs::is_directory(input.path) || !lies_in(input.path, output.path)) return "";
  if (input.option == "--zoo" && output.path.extension() == ".html") return "";
  if (fs::is_regular_file(output.path)) return "it would replace a file of " + where + ", which this command reads";
  if (!fs::exists(input.path / "manifest.json")) return "";
  return "the manifest of " + where + " lists all its files, and this would be another one";
}

}  // namespace

CLI::Option* writes(CLI::Option* option) {
  outputs().insert(option);
  return option;
}

void refuse_to_write_inputs(const CLI::App& app) {
  std::vector<Named> read, written;
  collect_names(app, read, written);
  for (const Named& output : written) {
    // What is no file or folder (a terminal, a null device) cannot be lost.
    if (fs::exists(output.path) && !fs::is_directory(output.path) && !fs::is_regular_file(output.path)) continue;
    for (const Named& input : read) {
      const std::string against = reason_against(output, input);
      if (!against.empty())
        throw UsageError(against, output.option + " " + output.path.string(), "choose another output");
    }
  }
}

}  // namespace oscar
