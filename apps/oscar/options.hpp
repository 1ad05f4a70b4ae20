// SPDX-License-Identifier: MIT
// Options of several commands, how their values are written, and what a command may not write.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/json.hpp"
#include "context.hpp"

namespace oscar {

/// Finite numbers from 0 on, above 0, and any. CLI11's own let NaN pass.
extern const CLI::Validator kNonNegative, kPositive, kFinite;

/// Writes "30k" out as 30000: k, M and G (or B) stand for thousands, millions and milliards; case does not count.
extern const CLI::Validator kCount;

/// Adds --json [FILE].
void add_json_option(CLI::App& command, Context& context);
/// Lets a folder that is read be an address, too: s3://BUCKET/PREFIX, hf://ORG/NAME, http:// or https://.
CLI::Option* allow_address(CLI::Option* option);
/// Adds --timeout.
void add_timeout_option(CLI::App& command, double& seconds);
/// Sends a command's machine-readable result where --json says; does nothing without --json.
void emit_json(const Context& context, const Json& document);
/// "0-3,7" -> {0, 1, 2, 3, 7}. Throws UsageError.
[[nodiscard]] std::vector<int> parse_layers(const std::string& text);
/// Lines of at most `width` characters.
[[nodiscard]] std::string wrapped(const std::string& text, std::size_t width);

/// Says that the option names a file or folder that the command writes; returns it.
CLI::Option* writes(CLI::Option* option);

/// Throws UsageError if what the command line asks to be written
///   - is something that the command reads, or a folder that holds it,
///   - is a file that exists in a folder that the command reads, or any file in one whose manifest lists all its files.
/// After parsing, before any work. A zoo's folder is not only read: its page may be written there.
void refuse_to_write_inputs(const CLI::App& app);

}  // namespace oscar
