// SPDX-License-Identifier: MIT
// What is wrong with a command line, an environment variable or a configuration file, in the form of our other errors:
// what, where, what to do, with the nearest name if one was misspelt. No word of the library that parses is shown.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/errors.hpp"
#include "option_file.hpp"

namespace oscar {

/// app: the program, in the state in which the parser left it.
[[nodiscard]] UsageError usage_error(CLI::App& app, const CLI::ParseError& error, const OptionFile& config);

/// The command that was named, as deep as it goes ("zoo tag"), or the program.
[[nodiscard]] CLI::App& active_command(CLI::App& app);

/// "oscar zoo tag"
[[nodiscard]] std::string full_name(const CLI::App& command);

/// The commands of a program or a command, in the order of help.
[[nodiscard]] std::vector<CLI::App*> commands_of(CLI::App& app);

/// The program, its commands and theirs.
[[nodiscard]] std::vector<CLI::App*> all_commands(CLI::App& app);

/// The command right below with this name, or null.
[[nodiscard]] CLI::App* command_below(CLI::App& app, const std::string& name);

}  // namespace oscar
