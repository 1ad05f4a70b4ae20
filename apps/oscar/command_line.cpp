// SPDX-License-Identifier: MIT
#include "command_line.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <sstream>
#include <string_view>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "toml_options.hpp"

namespace oscar {
namespace {

/// Options that can be set by OSCAR_<NAME>, in whichever command has them.
constexpr const char* kFromEnvironment[] = {"device", "model-dtype", "threads", "quiet",      "verbose",  "progress",
                                            "layers", "seed",        "seq-len", "max-tokens", "sequences"};

/// Pipes and devices may never end. What is missing is told by CLI11.
const CLI::Validator kDocument{
    [](const std::string& file) {
      namespace fs = std::filesystem;
      constexpr std::uintmax_t kMostBytes = 8U << 20U;
      std::error_code error;
      const bool ends =
          !fs::exists(file, error) || (fs::is_regular_file(file, error) && fs::file_size(file, error) < kMostBytes);
      return ends ? std::string()
                  : file + " is a pipe, a device, a folder or larger than 8 MiB: give a file of options";
    },
    ""};

/// What a script gives whose variable is not set.
const CLI::Validator kNotEmpty{[](const std::string& value) {
                                 return value.empty() ? "it is empty: give a value, or leave it out" : std::string();
                               },
                               ""};

/// CLI11's help, in lines that fit a terminal. Groups named "More …" are left to --help-all.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    all_ = mode != CLI::AppFormatMode::Normal;
    return std::regex_replace(Formatter::make_help(app, std::move(name), mode), std::regex("\n\n\n+"), "\n\n");
  }
  std::string make_group(std::string group, bool positional, std::vector<const CLI::Option*> options) const override {
    if (is_seldom(group) && !all_) return "";
    return Formatter::make_group(std::move(group), positional, std::move(options));
  }
  /// "--center,--no-center": without the values that flags stand for.
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    return std::regex_replace(Formatter::make_option_name(option, positional), std::regex(R"(\{\w*\})"), "");
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(option->get_description(), 80);
  }

  static bool is_seldom(const std::string& group) { return group.starts_with("More "); }

 private:
  mutable bool all_ = false;  // whoever makes help is constant
};

/// "oscar zoo tag"
std::string full_name(const CLI::App& command) {
  return (command.get_parent() == nullptr ? "" : full_name(*command.get_parent()) + " ") + command.get_name();
}

/// The commands right below a program or a command.
std::vector<CLI::App*> commands_of(CLI::App& app) {
  return app.get_subcommands([](CLI::App*) { return true; });
}

void finish(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_type_name().starts_with("FLOAT")) option->check(kFinite);  // a range lets NaN pass
    if (takes_count(*option)) option->transform(kCount);
    if (option->get_type_size() != 0 && option->get_items_expected_min() > 0) option->check(kNotEmpty);
  }
  for (const std::string name : kFromEnvironment) {
    CLI::Option* option = command.get_option_no_throw("--" + name);
    if (option == nullptr) continue;
    std::string variable = "OSCAR_" + name;
    for (char& c : variable) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    option->envname(variable);
  }
  for (CLI::App* below : commands_of(command)) finish(*below);
  if (command.get_parent() == nullptr) return;
  std::string footer = command.get_footer();
  if (!footer.empty()) footer += "\n\n";
  if (std::ranges::any_of(command.get_groups(), HelpFormatter::is_seldom)) {
    footer += "All options: " + full_name(command) + " --help-all\n";
  }
  command.footer(footer + "Options of every command (--device, --config, --quiet ...): oscar --help");
  command.get_option("--help-all")->group("");
  command.group("Commands");
}

/// "--json PATH" reads PATH as the file to write; if PATH was all there was, the user meant "--json" and PATH.
/// False if there is no such argument.
bool detach_json_value(std::vector<std::string>& arguments) {
  const auto json = std::ranges::find(arguments, "--json");
  if (json == arguments.end()) return false;
  *json = "--json=-";
  return true;
}

void parse(CLI::App& app, std::vector<std::string> arguments) {
  std::ranges::reverse(arguments);
  app.parse(arguments);
}

bool is(const CLI::ParseError& error, CLI::ExitCodes kind) { return error.get_exit_code() == static_cast<int>(kind); }

UsageError config_error(const std::string& what, const std::string& file) {
  constexpr std::string_view kUnknown = "INI was not able to parse ";
  const char* const remedy =
      "options of every command (device, threads ...) stand before all sections, others in that of their command";
  if (!what.starts_with(kUnknown)) return {what, file, remedy};
  const std::string key = what.substr(kUnknown.size());
  const std::size_t dot = key.rfind('.');
  if (key.ends_with(".++")) return {"there is no command \"" + key.substr(0, dot) + "\"", file, "see oscar --help"};
  if (dot == key.npos) return {"there is no option \"" + key + "\" of every command", file, remedy};
  return {"[" + key.substr(0, dot) + "] has no option \"" + key.substr(dot + 1) + "\"", file, remedy};
}

/// Whether the text is of this option, by CLI11's words for what an option cannot take.
bool is_of(const std::string& what, const CLI::Option& option) {
  return what.starts_with(option.get_name() + ":") || what.starts_with("Could not convert: " + option.get_name() + " ");
}

/// What gave an option, of whichever command, what it cannot take: the configuration file, which counts before a
/// variable; "": an argument.
std::string wrong_source(CLI::App& app, const std::string& what, const std::vector<std::string>& arguments,
                         const TomlOptions& config, const std::string& file) {
  const std::string section = app.get_parent() == nullptr ? "" : app.get_name();
  for (const CLI::Option* option : app.get_options()) {
    if (!is_of(what, *option) || option->count() == 0) continue;
    const std::vector<std::string> names = option->get_lnames();
    const auto stands = [&](const std::string& argument) {
      return std::ranges::any_of(names, [&](const std::string& name) {
        return argument == "--" + name || argument.starts_with("--" + name + "=");
      });
    };
    if (std::ranges::any_of(arguments, stands)) return "";
    const auto in_file = [&](const std::string& name) { return config.has(section, name); };
    return std::ranges::any_of(names, in_file) ? file : option->get_envname();
  }
  for (CLI::App* below : commands_of(app)) {
    if (std::string found = wrong_source(*below, what, arguments, config, file); !found.empty()) return found;
  }
  return "";
}

/// CLI11's words, with the place and what to do.
UsageError usage_error(CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& arguments) {
  CLI::App& command = active_command(app);
  const std::string what = error.what(), name = full_name(command), help = name + " --help";
  const std::string file = app["--config"]->count() > 0 ? app["--config"]->results().back() : "";
  if (is(error, CLI::ExitCodes::ConfigError)) return config_error(what, file);
  if (what.ends_with("too many inputs for a flag")) return {what, file, "write true or false"};
  if (is(error, CLI::ExitCodes::FileError)) return {what, "--config", "check the path and its permissions"};
  const auto config = std::dynamic_pointer_cast<const TomlOptions>(app.get_config_formatter());
  const std::string source = wrong_source(app, what, arguments, *config, file);
  if (!source.empty()) return {what, source, help};
  const std::vector<std::string> unexpected = app.remaining(true);
  if (unexpected.empty() || is(error, CLI::ExitCodes::ValidationError)) return {what, name, help};
  const std::string argument = unexpected.front().substr(0, unexpected.front().find('='));
  std::vector<std::string> names;
  for (const CLI::App* below : commands_of(command)) names.push_back(below->get_name());
  for (const CLI::App* part : {&command, &app}) {
    for (const CLI::Option* option : part->get_options()) {
      for (const std::string& known : option->get_lnames()) names.push_back("--" + known);
    }
  }
  const std::string near = nearest_name(argument, names);
  const std::string remedy = near == argument ? "write it behind " + name + ", or see " : near + ", or see ";
  return {"unexpected argument \"" + argument + "\"", name, (near.empty() ? "" : remedy) + help};
}

bool is_plain(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("_-./:,=+@%").find(c) != std::string_view::npos;
}

/// https://me:secret@host/x?token=1 becomes https://host/x. A password may hold what ends an authority; what stands
/// behind the colon then is no port.
std::string without_secrets(std::string text) {
  constexpr const char* kSpace = " \t\n\v\f\r";
  const auto until = [&](const std::string& ends, std::size_t at) {
    return std::min(text.find_first_of(ends, at), text.size());
  };
  for (std::size_t at = text.find("://"); at != text.npos; at = text.find("://", at)) {
    at += 3;
    const std::size_t authority = until(std::string("/?#") + kSpace, at), colon = until(":", at);
    const bool port = colon >= authority || text.find_first_not_of("0123456789", colon + 1) >= authority;
    const auto behind_user = [&](std::size_t end) {
      const std::size_t found = std::string_view(text).substr(at, end - at).rfind('@');
      return found == text.npos ? at : at + found + 1;
    };
    std::size_t host = behind_user(authority);
    if (host == at && !port) host = behind_user(until(kSpace, at));
    text.erase(at, host - at);
  }
  for (std::size_t at = text.find("://"); at != text.npos; at = text.find("://", at)) {
    at += 3;
    const std::size_t query = until(std::string("?#") + kSpace, at);
    text.erase(query, until(kSpace, at) - query);
  }
  return text;
}

}  // namespace

void add_common_options(CLI::App& app, Context& context) {
  CommonOptions& common = context.common;
  app.formatter(std::make_shared<HelpFormatter>());  // inherited by the commands
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.set_help_all_flag("--help-all", "Print all options, also those that are seldom needed, and exit");
  app.set_version_flag("--version", app.get_name() + " " + kVersion, "Print the version and exit");
  app.set_config("--config", "", "Read options from a TOML file; [fit] holds those of fit, and so on")
      ->check(kDocument)
      ->type_name("FILE");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.config_formatter(std::make_shared<TomlOptions>(app));
  app.add_option("--device", common.device, "Where to compute: auto, cpu, cuda or cuda:N")
      ->type_name("DEVICE")
      ->capture_default_str();
  app.add_option("--threads", common.threads, "CPU threads; 0 = one per core that it may use")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app.add_flag("--progress{auto},--no-progress{none}", common.progress,
               "auto: a bar on a terminal, elsewhere a line every 30 seconds, and where a stage that was told of ends; "
               "--progress=plain: lines, every 5 seconds and where any stage ends")
      ->check(CLI::IsMember({"auto", "plain", "none"}));
  app.add_flag("-q,--quiet", common.quiet, "Say nothing but warnings and errors");
  app.add_flag("-v,--verbose", common.verbose, "Say more");
  app.require_subcommand(1);
  app.fallthrough();  // inherited by the commands: common options may follow a command's name
}

void finish_commands(CLI::App& app) {
  app.footer(
      "Options of a command: oscar COMMAND --help\n"
      "Counts may be written as 30k (thousands), 2M or 1G, sizes as 500M or 10G (powers of 1024).\n"
      "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 verify or serve-check rejected the set, 130 interrupted.");
  finish(app);
}

void parse_and_run(CLI::App& app, const std::vector<std::string>& arguments) {
  try {
    return parse(app, arguments);
  } catch (const CLI::Success&) {
    if (app.get_subcommands().empty() && !app.remaining().empty()) {
      throw usage_error(app, CLI::ExtrasError(app.remaining()), arguments);
    }
    throw;
  } catch (const CLI::ParseError& error) {
    const UsageError first = usage_error(app, error, arguments);
    if (arguments.empty()) std::fputs((app.help() + "\n").c_str(), stderr);
    std::vector<std::string> again = arguments;
    if (!is(error, CLI::ExitCodes::RequiredError) || !detach_json_value(again)) throw first;
    try {
      return parse(app, again);
    } catch (const CLI::ParseError&) {
      throw first;
    }
  }
}

CLI::App& active_command(CLI::App& app) {
  const std::vector<CLI::App*> named = app.get_subcommands();
  return named.empty() ? app : active_command(*named.front());
}

void tell_settings(CLI::App& app, Status& status) {
  std::istringstream lines(active_command(app).config_to_str(true));
  for (std::string line; std::getline(lines, line);) status.detail("setting " + without_secrets(line));
}

std::string command_text(const std::vector<std::string>& arguments) {
  std::string text = "oscar";
  for (const std::string& argument : arguments) {
    const std::string shown = without_secrets(argument);
    const bool plain = !shown.empty() && std::ranges::all_of(shown, is_plain);
    text += " " + (plain ? shown : shell_quoted(shown));
  }
  return text;
}

}  // namespace oscar
