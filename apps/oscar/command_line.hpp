// SPDX-License-Identifier: MIT
// The command line as users meet it: the options that every command has, help, environment variables, and what is wrong
// with a line that cannot be parsed. CLI11 does the work; its words stand in help and errors.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/status.hpp"
#include "options.hpp"

namespace oscar {

/// --device, --threads, --config, --progress, --quiet, --verbose, --version; they work before and after the command's
/// name. Before any command is registered.
void add_common_options(CLI::App& app, Context& context);

/// Once all commands are registered: footers, numbers with units, and OSCAR_<NAME> for the options that every machine
/// sets its own way.
void finish_commands(CLI::App& app);

/// Parses and, through the commands' callbacks, runs. Throws what the command throws, UsageError for a wrong command
/// line, and CLI11's requests for help and version.
void parse_and_run(CLI::App& app, const std::vector<std::string>& arguments);

/// Returns the command that was named, as deep as it goes ("zoo tag"), or the program.
[[nodiscard]] CLI::App& active_command(CLI::App& app);

/// Tells the settings of the command that runs, as a configuration file would have them.
void tell_settings(CLI::App& app, Status& status);

/// "oscar verify 'my set' --model https://host/x": for a POSIX shell, without user names, passwords, queries and
/// fragments of addresses. arguments: those after the program's name.
[[nodiscard]] std::string command_text(const std::vector<std::string>& arguments);

}  // namespace oscar
