// SPDX-License-Identifier: MIT
// "oscar help" and "oscar version": what --help and --version say, for who types a word.
#include "help.hpp"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/errors.hpp"
#include "base/near_names.hpp"
#include "base/version.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "usage_errors.hpp"

namespace oscar {
namespace {

// oscar(1), made of the commands and options as they are registered: the same words as --help.

/// "\[u2026]" for one character of UTF-8 beyond ASCII that begins at `at`, which moves behind it.
std::string roff_character(const std::string& text, std::size_t& at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  std::uint32_t value = lead & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes && at + i < text.size(); ++i) {
    value = value << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3fU);
  }
  at += bytes;
  char escape[16];
  (void)std::snprintf(escape, sizeof escape, "\\[u%04X]", value);
  return escape;
}

/// Text of one line, in which roff finds nothing to obey.
std::string roff(const std::string& text) {
  std::string out = text.starts_with(".") || text.starts_with("'") ? "\\&" : "";
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if ((static_cast<unsigned char>(c) & 0x80U) != 0) {
      out += roff_character(text, i);
      continue;
    }
    out += c == '\\' ? "\\e" : c == '-' ? "\\-" : c == '\n' ? " " : std::string(1, c);
    ++i;
  }
  return out;
}

std::string bold(const std::string& text) { return "\\fB" + roff(text) + "\\fR"; }

/// A paragraph for each line: those of a command line are not joined.
std::string verbatim(const std::string& text) {
  std::istringstream lines(text);
  std::string out = ".PP\n.nf\n.RS\n";
  for (std::string line; std::getline(lines, line);) out += roff(line) + "\n";
  return out + ".RE\n.fi\n";
}

std::string options_of(const CLI::App& command) {
  std::string out;
  for (const OptionText& option : option_texts(command)) {
    out += ".TP\n" + bold(option.name) + "\n" + roff(option.description) + "\n";
  }
  return out;
}

void describe(CLI::App& command, std::string& out) {
  const std::string name = full_name(command);
  out += ".SS " + roff(name) + "\n" + roff(command.get_description()) + ".\n.PP\n" + bold(name) +
         roff(usage_of(command)) + "\n" + options_of(command);
  const std::string examples = examples_of(name.substr(name.find(' ') + 1));
  if (!examples.empty()) out += ".PP\nExamples:\n" + verbatim(examples);
  for (CLI::App* below : commands_of(command)) describe(*below, out);
}

/// The page in roff, with the man macros.
std::string man_page(CLI::App& app) {
  const std::string name = app.get_name();
  std::string out = ".TH OSCAR 1 \"\" \"" + name + " " + std::string(kVersion) + "\" \"User Commands\"\n.SH NAME\n" +
                    name + " \\- " + "low\\-bit KV caches: capture, fit, verify, share" + "\n.SH SYNOPSIS\n" +
                    bold(name) + " [OPTIONS] COMMAND [OPTIONS] ...\n.SH DESCRIPTION\n" + roff(app.get_description()) +
                    "\n.SH OPTIONS\nOf every command; they stand before or behind its name.\n" + options_of(app) +
                    ".SH COMMANDS\n";
  for (CLI::App* command : commands_of(app)) describe(*command, out);
  out += ".SH NUMBERS\n" + roff(kAboutNumbers) + "\n.SH EXIT STATUS\n" + roff(kAboutExitCodes) +
         "\n.SH ENVIRONMENT\nVariables named in brackets behind an option set it where the command line and the "
         "configuration file do not.\n";
  return out;
}

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
  help->add_option("COMMAND", *words, "The command, like fit or zoo list")->type_name(names);
  help->add_flag("--man", *man, "Print the manual page oscar.1 instead, of all commands");
  help->callback([&app, words, man] {
    CLI::App& command = command_of(app, *words);
    print(*man ? man_page(app)
               : command.get_formatter()->make_help(&command, full_name(command), CLI::AppFormatMode::Normal));
  });
  version->callback([&app] { print(app.get_name() + " " + kVersion + "\n"); });
}

}  // namespace oscar
