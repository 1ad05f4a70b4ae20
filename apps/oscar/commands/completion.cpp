// SPDX-License-Identifier: MIT
// Completion scripts for shells, made of the commands and options as they are registered.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <sstream>

#include "commands.hpp"
#include "help.hpp"

namespace oscar {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  return names;
}

/// "--model", "-q" … of a command, what its arguments can be, and the commands below it.
std::vector<std::string> words_of(const CLI::App& app) {
  std::vector<std::string> words = command_names(app);
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
    for (const std::string& name : option->get_snames()) words.push_back("-" + name);
    if (option->get_positional()) std::ranges::copy(choices_of(*option), std::back_inserter(words));
  }
  return words;
}

/// The program's own options, which are taken behind every command.
std::vector<std::string> common_options(const CLI::App& app) {
  std::vector<std::string> words = words_of(app);
  std::erase_if(words, [](const std::string& word) { return !word.starts_with("-"); });
  return words;
}

/// words, then those of `more` that are not among them.
std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  for (const std::string& word : more) {
    if (std::ranges::find(words, word) == words.end()) words.push_back(word);
  }
  return words;
}

/// calls visit(path, command) for the program (path "") and for each command ("fit", "zoo tag").
template <class Visit>
void for_each_command(const CLI::App& app, const std::string& path, const Visit& visit) {
  visit(path, app);
  for (const CLI::App* command : commands_of(app)) {
    for_each_command(*command, path.empty() ? command->get_name() : path + " " + command->get_name(), visit);
  }
}

/// Words behind an option that has choices, else commands and options; other words are names of files. zsh runs it too,
/// where "path" and "words" are its own and a ":" before a letter is a modifier.
std::string bash_script(const CLI::App& app) {
  const std::vector<std::string> common = common_options(app);
  std::string values, words;
  for_each_command(app, "", [&](const std::string& path, const CLI::App& command) {
    words += "    \"" + path + "\") offered=\"" + joined(with(words_of(command), common)) + "\" ;;\n";
    for (const CLI::Option* option : command.get_options()) {
      const std::vector<std::string> choices = choices_of(*option);
      if (choices.empty() || option->get_lnames().empty()) continue;
      values += "    \"" + path + " --" + option->get_lnames().front() + "\") offered=\"" + joined(choices) + "\" ;;\n";
    }
  });
  const std::string nested = joined(command_names(*app.get_subcommand("zoo")));
  return "_oscar() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} named= offered= word\n"
         "  for word in \"${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}\"; do\n"
         "    if [[ -z $named && \" " +
         joined(command_names(app)) +
         " \" == *\" $word \"* ]]; then named=$word\n"
         "    elif [[ $named == zoo && \" " +
         nested +
         " \" == *\" $word \"* ]]; then named=\"zoo $word\"; fi\n"
         "  done\n"
         "  case \"$named $before\" in\n" +
         values + "  *) case $named in\n" + words +
         "  esac ;;\n"
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$offered\" -- \"$current\"))\n"
         "}\n"
         "complete -o default -o bashdefault -F _oscar oscar\n";
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "\\'" : c == '\\' ? "\\\\" : std::string(1, c);
  return out + "'";
}

/// "-n '…'": behind "zoo" and then "tag", for path "zoo tag".
std::string fish_condition(const std::string& path) {
  if (path.empty()) return "";
  std::string tests;
  std::istringstream words(path);
  for (std::string word; words >> word;) {
    tests += (tests.empty() ? "" : "; and ") + std::string("__fish_seen_subcommand_from ") + word;
  }
  return " -n '" + tests + "'";
}

std::string fish_script(const CLI::App& app) {
  std::string out = "complete -c oscar -n __fish_use_subcommand -a \"" + joined(command_names(app)) + "\" -f\n";
  for_each_command(app, "", [&](const std::string& path, const CLI::App& command) {
    const std::string line = "complete -c oscar" + fish_condition(path);
    const std::vector<std::string> below = command_names(command);
    if (!path.empty() && !below.empty()) out += line + " -f -a \"" + joined(below) + "\"\n";
    for (const CLI::Option* option : command.get_options()) {
      const std::string choices = joined(choices_of(*option));
      const std::string exactly = " -x -a \"" + choices + "\"";
      if (option->get_positional() && !choices.empty()) out += line + exactly + "\n";
      const bool needs_value = option->get_type_size() > 0 && option->get_expected_min() > 0;
      const std::string value = !needs_value ? "" : choices.empty() ? " -r" : exactly;
      std::string names;
      for (const std::string& name : option->get_snames()) names += " -s " + name;
      for (const std::string& name : option->get_lnames()) {
        out += line + names + " -l " + name + value + " -d " + quoted(option->get_description()) + "\n";
        names.clear();
      }
    }
  });
  return out;
}

}  // namespace

void register_completion(CLI::App& app) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* completion = app.add_subcommand("completion", "Print a completion script for bash, zsh or fish");
  completion->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->callback([&app, shell] {
    const std::string script = *shell == "fish" ? fish_script(app) : bash_script(app);
    const char* const zsh = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n";
    std::fputs(((*shell == "zsh" ? zsh : "") + script).c_str(), stdout);
  });
}

}  // namespace oscar
