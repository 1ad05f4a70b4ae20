// SPDX-License-Identifier: MIT
#include "usage_errors.hpp"

#include <algorithm>
#include <iterator>
#include <regex>

#include "base/text.hpp"
#include "help.hpp"
#include "settings.hpp"

namespace oscar {
namespace {

/// An error that is about one option, and what the user may have written for it.
struct Mistake {
  const CLI::App* command;
  const CLI::Option* option;
  std::string name;  // "--threads"
};

std::string help_of(const CLI::App& command) { return full_name(command) + " --help"; }

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> command_names(CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  return names;
}

std::string or_see(const std::string& suggestion, const std::string& help) {
  return suggestion.empty() ? help : suggestion + ", or see " + help;
}

/// The error for the first argument that nobody wanted.
UsageError unexpected_argument(CLI::App& app, const std::string& argument) {
  CLI::App& command = active_command(app);
  const std::string name_of_command = full_name(command), help = help_of(command);
  std::string what = "unexpected argument \"" + argument + "\"", suggestion;
  if (argument.starts_with("-")) {
    const std::string name = argument.substr(0, argument.find('='));
    what = "unknown option " + name;
    std::vector<std::string> names = option_names(command);
    if (&command != &app) std::ranges::copy(option_names(app), std::back_inserter(names));
    suggestion = nearest_name(name, names);
    if (suggestion == name) suggestion = "write it behind the command: " + name_of_command + " " + name;
  } else if (!commands_of(command).empty()) {
    what = "unknown command \"" + argument + "\"";
    suggestion = nearest_name(argument, command_names(command));
  }
  return {what, name_of_command, or_see(suggestion, help)};
}

/// The option that the message is about: of the command that was named, of the program, or of one that a configuration
/// file or the environment reached.
std::optional<Mistake> option_in(CLI::App& app, const std::string& message) {
  std::vector<CLI::App*> parts{&active_command(app)};
  std::ranges::copy(all_commands(app), std::back_inserter(parts));
  for (const bool with_value : {true, false}) {
    for (const CLI::App* part : parts) {
      for (const CLI::Option* option : part->get_options()) {
        const std::string name = option->get_name();
        const std::size_t at = message.starts_with("Could not convert: ") ? 19 : 0;
        const bool named = message.compare(at, name.size(), name) == 0 &&
                           (at + name.size() == message.size() || message.find_first_of(": ", at) == at + name.size());
        if (named && (!with_value || option->count() > 0)) return Mistake{part, option, name};
      }
    }
  }
  return std::nullopt;
}

/// Where a wrong value stands: the command, or the file or variable that it comes from.
std::string where_of(const CLI::App& app, const Mistake& mistake, const OptionFile& config) {
  const std::string source = source_of(app, *mistake.command, *mistake.option, config);
  return source == "command line" || source == "default" ? full_name(*mistake.command) : source;
}

bool is_flag(const CLI::Option& option) { return option.get_type_size() == 0 || option.get_items_expected_max() == 0; }

UsageError wrong_number_of_values(const CLI::App& app, const Mistake& m, const OptionFile& config) {
  const std::string where = where_of(app, m, config), help = help_of(*m.command);
  const std::size_t given = m.option->count();
  const int most = m.option->get_items_expected_max();
  if (is_flag(*m.option)) return {m.name + " takes no value", where, "leave out what stands behind \"=\""};
  if (given > static_cast<std::size_t>(most)) {
    return {m.name + " takes " + (most == 1 ? "one value" : plural(most, "value")) + " and was given " +
                CLI::detail::join(m.option->results(), ", "),
            where, "give it once, or see " + help};
  }
  std::string choices;
  for (const std::string& choice : choices_of(*m.option)) choices += (choices.empty() ? "one of: " : ", ") + choice;
  return {m.name + " needs a value", where, or_see(choices, help)};
}

/// What a value must be that could not be read: told by the type of its option.
std::string expectation(const CLI::Option& option, const std::string& value) {
  const std::string type = option.get_type_name();
  if (is_flag(option)) return "neither true nor false";
  if (type.starts_with("INT") || type.starts_with("UINT")) {
    const bool digits = !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
    return digits ? "too large a number"
                  : "not a whole number" + std::string(type.starts_with("U") ? " from 0 on" : "");
  }
  return type.starts_with("FLOAT") ? "not a number" : "not a value that it takes";
}

UsageError unreadable_value(const CLI::App& app, const Mistake& m, const OptionFile& config) {
  const std::string value = CLI::detail::join(m.option->results(), " ");
  return {m.name + ": \"" + value + "\" is " + expectation(*m.option, value), where_of(app, m, config),
          help_of(*m.command)};
}

/// The checks that we wrote say it themselves; those of CLI11 that say a range or a choice are put in our words.
UsageError refused_value(const CLI::App& app, const Mistake& m, std::string reason, const OptionFile& config) {
  const std::string where = where_of(app, m, config);
  const std::vector<std::string> choices = choices_of(*m.option);
  for (const std::string& value : m.option->results()) {
    if (choices.empty() || std::ranges::find(choices, value) != choices.end()) continue;
    const UsageError error = unknown_choice(value, where, choices);
    return {m.name + ": " + error.what(), where, error.remedy()};
  }
  static const std::regex kRange(R"(Value (.*) not in range \[?(\S+) (?:-|to) ([^\]\s]+)\]?)");
  std::smatch found;
  if (std::regex_match(reason, found, kRange)) {
    reason = "\"" + found[1].str() + "\" is not a number from " + found[2].str() + " to " + found[3].str();
  }
  return {m.name + ": " + reason, where, help_of(*m.command)};
}

/// reason: what CLI11 says behind the name of the option.
UsageError about_option(const CLI::App& app, const Mistake& m, const CLI::ParseError& error, const OptionFile& config) {
  const std::string message = error.what(), help = help_of(*m.command), where = full_name(*m.command);
  const std::string rest = message.size() > m.name.size() ? message.substr(m.name.size() + 1) : "";
  switch (static_cast<CLI::ExitCodes>(error.get_exit_code())) {
    case CLI::ExitCodes::ArgumentMismatch:
      return wrong_number_of_values(app, m, config);
    case CLI::ExitCodes::ConversionError:
      return unreadable_value(app, m, config);
    case CLI::ExitCodes::ValidationError:
      return refused_value(app, m, rest.starts_with(" ") ? rest.substr(1) : rest, config);
    case CLI::ExitCodes::RequiredError:
      return {m.name + " is required: " + m.option->get_description(), where, help};
    case CLI::ExitCodes::RequiresError: {
      const std::string other = rest.substr(rest.find(' ') + 1);
      return {m.name + " requires " + other, where, "give " + other + " too, or leave " + m.name + " out"};
    }
    case CLI::ExitCodes::ExcludesError:
      return {m.name + " excludes " + rest.substr(rest.find(' ') + 1), where, "leave one of them out"};
    default:
      return {m.name + ": this does not fit", where, help};
  }
}

/// "INI was not able to parse fit.nonsense", "fit.x: This option is not allowed in a configuration file", and flags
/// that have several values there: the last word, or the first, is the name.
UsageError in_config_file(CLI::App& app, const CLI::ParseError& error, const OptionFile& config) {
  const std::string message = error.what(), file = app["--config"]->as<std::string>();
  const std::size_t colon = message.find(": ");
  std::string name =
      colon == std::string::npos ? message.substr(message.find_last_of(' ') + 1) : message.substr(0, colon);
  const bool section = name.ends_with(".++") || name.ends_with(".--");
  if (section) name.resize(name.size() - 3);
  const auto line = config.line_of(name);
  const std::string where = file + (line ? " line " + std::to_string(*line) : "");
  if (colon != std::string::npos) {
    const bool flag = static_cast<CLI::ExitCodes>(error.get_exit_code()) == CLI::ExitCodes::ConversionError;
    return {name + (flag ? " takes no list" : " cannot be set in a configuration file"), where,
            flag ? "write " + name + " = true or false" : "give it on the command line"};
  }
  CLI::App* command = &app;
  const std::size_t dot = name.find_last_of('.');
  std::vector<std::string> parents =
      dot == std::string::npos ? std::vector<std::string>{} : CLI::detail::split(name.substr(0, dot), '.');
  if (section) parents = CLI::detail::split(name, '.');
  for (const std::string& parent : parents) {
    CLI::App* below = command_below(*command, parent);
    if (below == nullptr) {
      return {"there is no command \"" + parent + "\" for the section [" + parent + "]", where,
              or_see(nearest_name(parent, command_names(*command)), help_of(*command))};
    }
    command = below;
  }
  const std::string key = dot == std::string::npos ? name : name.substr(dot + 1);
  const std::string near = nearest_name("--" + key, option_names(*command));
  return {"\"" + name + "\" is no option of " + full_name(*command), where,
          or_see(near.empty() ? near : near.substr(2), help_of(*command))};
}

}  // namespace

std::vector<CLI::App*> commands_of(CLI::App& app) {
  return app.get_subcommands([](CLI::App*) { return true; });
}

std::vector<CLI::App*> all_commands(CLI::App& app) {
  std::vector<CLI::App*> all{&app};
  for (CLI::App* command : commands_of(app)) std::ranges::copy(all_commands(*command), std::back_inserter(all));
  return all;
}

CLI::App* command_below(CLI::App& app, const std::string& name) {
  for (CLI::App* command : commands_of(app)) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

CLI::App& active_command(CLI::App& app) {
  const std::vector<CLI::App*> named = app.get_subcommands();
  return named.empty() ? app : active_command(*named.front());
}

std::string full_name(const CLI::App& command) {
  return (command.get_parent() == nullptr ? "" : full_name(*command.get_parent()) + " ") + command.get_name();
}

UsageError usage_error(CLI::App& app, const CLI::ParseError& error, const OptionFile& config) {
  CLI::App& command = active_command(app);
  const std::string name = full_name(command), message = error.what();
  const auto kind = static_cast<CLI::ExitCodes>(error.get_exit_code());
  const bool missing = kind == CLI::ExitCodes::RequiredError;
  const std::vector<std::string> unexpected = app.remaining(true);
  if (!unexpected.empty() && (missing || kind == CLI::ExitCodes::ExtrasError)) {
    return unexpected_argument(app, unexpected.front());
  }
  if (kind == CLI::ExitCodes::ConfigError) return in_config_file(app, error, config);
  if (kind == CLI::ExitCodes::FileError) {
    const std::string file = message.substr(0, message.find(" was not readable"));
    return {"the configuration file cannot be read", file, "name a TOML file that is there"};
  }
  for (const std::string& named : {message, "--" + message}) {  // of a flag with a value the dashes are left out
    if (const auto mistake = option_in(app, named)) return about_option(app, *mistake, error, config);
  }
  if (missing && !commands_of(command).empty()) {
    return {"no command given", name, name + " COMMAND --help"};
  }
  if (kind == CLI::ExitCodes::ConversionError && message.find(": ") != std::string::npos) {
    return in_config_file(app, error, config);
  }
  return {"the command line cannot be understood", name, help_of(command)};
}

}  // namespace oscar
