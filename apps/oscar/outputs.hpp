// SPDX-License-Identifier: MIT
// What a command writes may not be what it reads: a rule for all options of all commands.
#pragma once

#include <CLI/CLI.hpp>

namespace oscar {

/// Says that the option names a file or folder that the command writes; returns it.
CLI::Option* writes(CLI::Option* option);

/// Throws UsageError if what the command line asks to be written
///   - is something that the command reads, or a folder that holds it,
///   - is a file that exists in a folder that the command reads, or any file in one whose manifest lists all its files.
/// After parsing, before any work. A zoo's folder is not only read: its page may be written there.
void refuse_to_write_inputs(const CLI::App& app);

}  // namespace oscar
