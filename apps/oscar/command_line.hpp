// SPDX-License-Identifier: MIT
// The command line as users meet it: options that every command has, environment variables, and how it is parsed.
// What is wrong with it is told by usage_errors.hpp.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/errors.hpp"
#include "context.hpp"

namespace oscar {

/// --version, --config, --quiet, --verbose, --progress; they work before and after the command's name.
void add_common_options(CLI::App& app, Context& context);

/// Once all commands are registered: headings, footers, and OSCAR_<NAME> for the options that every machine sets its
/// own way.
void finish_commands(CLI::App& app);

/// Parses and, through the commands' callbacks, runs. Throws what the command throws, UsageError for a wrong command
/// line, and CLI11's requests for help and version.
void parse_and_run(CLI::App& app, const std::vector<std::string>& arguments, const Context& context);

}  // namespace oscar
