// SPDX-License-Identifier: MIT
// Where the values of options come from: the command line, a configuration file, the environment, or nowhere (then
// they are defaults). What --verbose tells of a run.
#pragma once

#include <chrono>
#include <string>

#include <CLI/CLI.hpp>

#include "base/status.hpp"
#include "option_file.hpp"

namespace oscar {

/// "command line", "run.toml line 3", "OSCAR_THREADS in the environment", or "default". command: the one that has the
/// option.
[[nodiscard]] std::string source_of(const CLI::App& app, const CLI::App& command, const CLI::Option& option,
                                    const OptionFile& config);

/// Each option of the command that runs, and of the program: its value and where that came from.
void tell_settings(CLI::App& app, const OptionFile& config, Status& status);

/// What the process used until now: wall and processor time, peak memory, bytes read and written, threads.
void tell_costs(std::chrono::steady_clock::time_point started, Status& status);

}  // namespace oscar
