// SPDX-License-Identifier: MIT
#include "command_line.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <string_view>

#include "base/version.hpp"
#include "help.hpp"
#include "numbers.hpp"
#include "usage_errors.hpp"

namespace oscar {
namespace {

/// Options that can be set by OSCAR_<NAME>, in whichever command has them.
constexpr const char* kFromEnvironment[] = {"device", "model-dtype", "threads", "quiet",      "verbose",  "progress",
                                            "layers", "seed",        "seq-len", "max-tokens", "sequences"};

constexpr std::array<std::string_view, 3> kProgressModes{"auto", "plain", "none"};

/// What was a flag once may be set like one: OSCAR_PROGRESS=0, progress = true.
std::string as_progress_mode(std::string& text) {
  const std::string word = CLI::detail::to_lower(text);
  if (word == "true" || word == "on" || word == "yes" || word == "1") text = "auto";
  if (word == "false" || word == "off" || word == "no" || word == "0") text = "none";
  return std::ranges::find(kProgressModes, text) != kProgressModes.end() ? "" : "no such progress";
}

/// "--json PATH" reads PATH as the file to write; if PATH was all there was, the user meant "--json" and PATH.
/// False if there is no such argument.
bool detach_json_value(std::vector<std::string>& arguments) {
  const auto json = std::ranges::find(arguments, "--json");
  if (json == arguments.end()) return false;
  *json = "--json=-";
  return true;
}

bool is(const CLI::ParseError& error, CLI::ExitCodes kind) { return error.get_exit_code() == static_cast<int>(kind); }

/// "--progress" alone is a flag, "--progress plain" has a value: CLI11 has no option whose value may be left out where
/// an argument of the command may follow.
std::vector<std::string> with_progress_values(const std::vector<std::string>& arguments) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--")
      return out.insert(out.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end()), out;
    out.push_back(arguments[i]);
    if (arguments[i] != "--progress") continue;
    const bool named =
        i + 1 < arguments.size() && std::ranges::find(kProgressModes, arguments[i + 1]) != kProgressModes.end();
    out.back() += named ? "=" + arguments[++i] : "=auto";
  }
  return out;
}

void parse(CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> reversed = with_progress_values(arguments);
  std::ranges::reverse(reversed);
  app.parse(reversed);
}

}  // namespace

void add_common_options(CLI::App& app, Context& context) {
  app.formatter(std::make_shared<HelpFormatter>());  // inherited by the commands
  app.set_version_flag("--version", app.get_name() + " " + kVersion, "Print the version and exit");
  app.config_formatter(context.config);
  app.set_config("--config", "", "Read options from a TOML file; [fit] holds those of fit, and so on")
      ->type_name("FILE");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.add_flag("-q,--quiet", context.common.quiet, "Say nothing but warnings and errors");
  app.add_flag("-v,--verbose", context.common.verbose, "Say more");
  app.add_option(
         "--progress", context.common.progress,
         "auto: a bar on a terminal, elsewhere a line every 30 seconds; plain: lines, every 5 seconds and where "
         "a stage ends; alone: auto")
      ->transform(CLI::Validator(as_progress_mode, ""))
      ->type_name("auto|plain|none")
      ->take_last()
      ->capture_default_str();
  app.add_flag_callback(
      "--no-progress", [&context] { context.common.progress = "none"; }, "The same as --progress none");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  app.require_subcommand(1);
  app.fallthrough();  // inherited by the commands: common options may follow a command's name
}

namespace {

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
  app.footer("Options of a command: " + app.get_name() + " COMMAND --help\n" + kAboutNumbers +
             "\nExit codes: " + kAboutExitCodes);
  for (CLI::App* part : all_commands(app)) {
    take_counts(*part);
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

void parse_and_run(CLI::App& app, const std::vector<std::string>& arguments, const Context& context) {
  try {
    return parse(app, arguments);
  } catch (const CLI::Success&) {
    throw;
  } catch (const CLI::ParseError& error) {
    const UsageError first = usage_error(app, error, *context.config);
    if (arguments.empty()) {
      std::fputs((app.help() + "\n").c_str(), stderr);
    }
    std::vector<std::string> again = arguments;
    if (!is(error, CLI::ExitCodes::RequiredError) || !detach_json_value(again)) throw first;
    try {
      return parse(app, again);
    } catch (const CLI::ParseError&) {
      throw first;
    }
  }
}

}  // namespace oscar
