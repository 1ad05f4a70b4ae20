// SPDX-License-Identifier: MIT
// "oscar help" and "oscar version": what --help and --version say, for who types a word.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/near_names.hpp"
#include "base/version.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "man_page.hpp"
#include "usage_errors.hpp"

namespace oscar {
namespace {

std::vector<std::string> names_of(CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* below : commands_of(command)) names.push_back(below->get_name());
  return names;
}

/// "zoo", "tag": the command that these words name. Throws UsageError.
CLI::App& command_of(CLI::App& app, const std::vector<std::string>& words) {
  CLI::App* command = &app;
  for (const std::string& word : words) {
    CLI::App* below = command_below(*command, word);
    if (below == nullptr) {
      const std::string near = nearest_name(word, names_of(*command)), all = full_name(*command) + " --help";
      throw UsageError(full_name(*command) + " has no command \"" + word + "\"", "oscar help",
                       near.empty() ? all : near + ", or see " + all);
    }
    command = below;
  }
  return *command;
}

}  // namespace

void register_help(CLI::App& app) {
  CLI::App* help = app.add_subcommand("help", "Print the help of the program or of a command");
  CLI::App* version = app.add_subcommand("version", "Print the version");
  const auto words = std::make_shared<std::vector<std::string>>();
  const auto man = std::make_shared<bool>(false);
  std::string names;
  for (const std::string& name : names_of(app)) names += (names.empty() ? "" : "|") + name;
  help->add_option("COMMAND", *words, "The command, like fit or zoo tag")->type_name(names);
  help->add_flag("--man", *man, "Print the manual page oscar.1 instead, of all commands");
  help->callback([&app, words, man] {
    CLI::App& command = command_of(app, *words);
    print(*man ? man_page(app)
               : command.get_formatter()->make_help(&command, full_name(command), CLI::AppFormatMode::Normal));
  });
  version->callback([&app] { print(app.get_name() + " " + kVersion + "\n"); });
}

}  // namespace oscar
