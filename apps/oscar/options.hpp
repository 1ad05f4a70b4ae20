// SPDX-License-Identifier: MIT
// What every command gets: the common options, and where its talk goes. Options of several commands, how their values
// are written, and what a command may not write.
#pragma once

#include <chrono>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/json.hpp"
#include "base/status.hpp"
#include "remote/hub.hpp"

namespace oscar {

/// Options that mean the same in every command that has them.
struct CommonOptions {
  std::string device = "auto";
  int threads = 0;
  bool quiet = false;
  bool verbose = false;
  std::string progress = "auto";    // or plain, none
  bool json_to_stdout = false;      // --json without FILE
  std::filesystem::path json_file;  // --json FILE
};

struct Context {
  /// About when the process began.
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  CommonOptions common;
  /// The command line, for reports (command_text).
  std::vector<std::string> arguments;
  /// What addresses lead to; registered by main.
  NetworkPlaces network;
  /// Set by main once the options are known.
  std::unique_ptr<Status> status;
  /// What the command's callback asks main to return; 0 unless verify rejects.
  int exit_code = 0;
};

/// Finite numbers from 0 on, above 0, any, and from 0 to 1e9: tokens of a window. CLI11's own let NaN pass.
extern const CLI::Validator kNonNegative, kPositive, kFinite, kWindow;

/// Writes "30k" out as 30000: k, M and G (or B) stand for thousands, millions and milliards; case does not count.
extern const CLI::Validator kCount;

/// Adds --json [FILE].
void add_json_option(CLI::App& command, Context& context);
/// Lets a folder that is read be an address, too: hf://ORG/NAME, http:// or https://.
CLI::Option* allow_address(CLI::Option* option);
/// Whether the command line or a file gives the option: what the environment says is for all commands.
bool is_given(const CLI::Option& option);
/// Whether its values are counts, which may be written like "30k".
bool takes_count(const CLI::Option& option);
/// Throws UsageError for the first of these options that is given: why nothing takes it.
void refuse_given(const CLI::App& command, std::initializer_list<const char*> names, const char* why,
                  const char* remedy = "leave it out");
/// Adds --timeout.
void add_timeout_option(CLI::App& command, double& seconds);
/// Sends a command's machine-readable result where --json says; does nothing without --json.
void emit_json(const Context& context, const Json& document);
/// Throws where a file cannot be written: that should be told before the work, not after it. "" is none.
void require_writable(const std::filesystem::path& file);
/// Whether --json may write there: a file that is JSON, empty or not there, or a device.
bool may_be_replaced_by_json(const std::filesystem::path& file);
/// Throws where --json cannot write, or would replace what is not JSON: "--json" in front of a name takes it for FILE.
void require_json_target(const std::filesystem::path& file);
/// Throws where --report cannot write, or would replace what is not HTML.
void require_report_target(const std::filesystem::path& file);
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
