// SPDX-License-Identifier: MIT
#include "command_line.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "base/version.hpp"
#include "help.hpp"

namespace oscar {
namespace {

/// Options that can be set by OSCAR_<NAME>, in whichever command has them.
constexpr const char* kFromEnvironment[] = {"device", "model-dtype", "threads", "quiet",      "verbose",  "progress",
                                            "layers", "seed",        "seq-len", "max-tokens", "sequences"};

std::vector<CLI::App*> commands_of(CLI::App& app) {
  return app.get_subcommands([](CLI::App*) { return true; });
}

/// Number of inserted, deleted, replaced or swapped neighbouring letters between two words.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const std::size_t replaced = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

/// The command that was named, as deep as it goes ("zoo tag"), or the program.
CLI::App& active_command(CLI::App& app) {
  const std::vector<CLI::App*> named = app.get_subcommands();
  return named.empty() ? app : active_command(*named.front());
}

/// "oscar zoo tag"
std::string full_name(const CLI::App& command) {
  return (command.get_parent() == nullptr ? "" : full_name(*command.get_parent()) + " ") + command.get_name();
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// The error for the first argument that nobody wanted.
UsageError unexpected_argument(CLI::App& app, const std::string& argument) {
  CLI::App& command = active_command(app);
  const std::string name_of_command = full_name(command), help = name_of_command + " --help";
  std::string what = "unexpected argument \"" + argument + "\"", suggestion;
  if (argument.starts_with("-")) {
    const std::string name = argument.substr(0, argument.find('='));
    what = "unknown option " + name;
    std::vector<std::string> names = option_names(command);
    if (&command != &app) std::ranges::copy(option_names(app), std::back_inserter(names));
    suggestion = nearest_name(name, names);
    if (suggestion == name) suggestion = "write it behind the command: " + name_of_command + " " + name;
  } else if (&command == &app) {
    what = "unknown command \"" + argument + "\"";
    std::vector<std::string> names;
    for (const CLI::App* known : commands_of(app)) names.push_back(known->get_name());
    suggestion = nearest_name(argument, names);
  }
  return {what, name_of_command, suggestion.empty() ? help : suggestion + ", or see " + help};
}

bool is(const CLI::ParseError& error, CLI::ExitCodes kind) { return error.get_exit_code() == static_cast<int>(kind); }

UsageError usage_error(CLI::App& app, const CLI::ParseError& error) {
  CLI::App& command = active_command(app);
  const std::string name = full_name(command);
  const std::vector<std::string> unexpected = app.remaining(true);
  if (!unexpected.empty() && (is(error, CLI::ExitCodes::ExtrasError) || is(error, CLI::ExitCodes::RequiredError))) {
    return unexpected_argument(app, unexpected.front());
  }
  if (&command == &app && is(error, CLI::ExitCodes::RequiredError)) {
    std::fputs((app.help() + "\n").c_str(), stderr);
    return {"no command given", name, name + " COMMAND --help"};
  }
  std::string what = error.what();
  std::replace(what.begin(), what.end(), '\n', ' ');
  return {what, name, name + " --help"};
}

/// "--json PATH" reads PATH as the file to write; if PATH was all there was, the user meant "--json" and PATH.
/// False if there is no such argument.
bool detach_json_value(std::vector<std::string>& arguments) {
  const auto json = std::ranges::find(arguments, "--json");
  if (json == arguments.end()) return false;
  *json = "--json=-";
  return true;
}

void parse(CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  app.parse(reversed);
}

}  // namespace

void add_common_options(CLI::App& app, Context& context) {
  app.formatter(std::make_shared<HelpFormatter>());  // inherited by the commands
  app.set_version_flag("--version", app.get_name() + " " + kVersion, "Print the version and exit");
  app.set_config("--config", "", "Read options from a TOML file; [fit] holds those of fit, and so on")
      ->type_name("FILE");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.add_flag("-q,--quiet", context.common.quiet, "Say nothing but warnings and errors");
  app.add_flag("-v,--verbose", context.common.verbose, "Say more");
  app.add_flag("--progress", context.common.progress, "Draw progress on a terminal (the default)");
  app.add_flag_callback(
      "--no-progress", [&context] { context.common.progress = false; }, "Draw no progress");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  app.require_subcommand(1);
  app.fallthrough();  // inherited by the commands: common options may follow a command's name
}

namespace {

/// The program, its commands and theirs.
void collect(CLI::App& app, std::vector<CLI::App*>& parts) {
  parts.push_back(&app);
  for (CLI::App* command : commands_of(app)) collect(*command, parts);
}

void finish_help(CLI::App& command, const std::string& program) {
  const std::string examples = examples_of(full_name(command).substr(program.size() + 1));
  std::string footer = command.get_footer();
  if (!footer.empty()) footer += "\n\n";
  if (!examples.empty()) {
    footer += "Examples:\n  " + CLI::detail::find_and_replace(examples, "\n", "\n  ") + "\n\n";
  }
  command.footer(footer + "Options of every command (--quiet, --verbose, --config …): " + program + " --help");
  command.group("Commands");
  command.get_help_ptr()->group("Other");
}

}  // namespace

void finish_commands(CLI::App& app) {
  app.footer(
      "Options of a command: " + app.get_name() +
      " COMMAND --help\nExit codes: 0 done, 1 failed, 2 wrong usage, 3 verify rejected the set, 130 interrupted.");
  std::vector<CLI::App*> parts;
  collect(app, parts);
  for (CLI::App* part : parts) {
    if (part != &app) finish_help(*part, app.get_name());
    for (const std::string name : kFromEnvironment) {
      CLI::Option* option = part->get_option_no_throw("--" + name);
      if (option == nullptr) continue;
      std::string variable = "OSCAR_" + name;
      for (char& c : variable) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      option->envname(variable);
    }
  }
}

void parse_and_run(CLI::App& app, const std::vector<std::string>& arguments) {
  try {
    return parse(app, arguments);
  } catch (const CLI::Success&) {
    throw;
  } catch (const CLI::ParseError& error) {
    const UsageError first = usage_error(app, error);
    std::vector<std::string> again = arguments;
    if (!is(error, CLI::ExitCodes::RequiredError) || !detach_json_value(again)) throw first;
    try {
      return parse(app, again);
    } catch (const CLI::ParseError&) {
      throw first;
    }
  }
}

std::string nearest_name(const std::string& word, const std::vector<std::string>& names) {
  std::string nearest;
  std::size_t best = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(word, name);
    if (distance < best) best = distance, nearest = name;
  }
  return nearest;
}

}  // namespace oscar
