// SPDX-License-Identifier: MIT
// What every command gets: the common options, and where its talk goes.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/json.hpp"
#include "base/status.hpp"
#include "kernels/backend.hpp"
#include "numbers.hpp"
#include "option_file.hpp"
#include "remote/network_places.hpp"

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
  /// The command line, for reports (command_text.hpp).
  std::vector<std::string> arguments;
  /// What addresses lead to; registered by main.
  NetworkPlaces network;
  /// What --config names.
  std::shared_ptr<OptionFile> config = std::make_shared<OptionFile>();
  /// Set by main once the options are known.
  std::unique_ptr<Status> status;
  /// What the command's callback asks main to return; 0 unless verify rejects.
  int exit_code = 0;
};

/// Adds --device, --threads.
void add_backend_options(CLI::App& command, Context& context);
/// Adds --json [FILE].
void add_json_option(CLI::App& command, Context& context);
/// Lets a folder that is read be an address, too: hf://ORG/NAME, http:// or https://.
CLI::Option* allow_address(CLI::Option* option);
/// Adds --timeout.
void add_timeout_option(CLI::App& command, double& seconds);
/// Sends a command's machine-readable result where --json says; does nothing without --json.
void emit_json(const Context& context, const Json& document);
/// "0-3,7" -> {0, 1, 2, 3, 7}. Throws UsageError.
[[nodiscard]] std::vector<int> parse_layers(const std::string& text);
/// "0,1,-2,-1": in the order given. Throws UsageError.
[[nodiscard]] std::vector<int> parse_bf16_layers(const std::string& text);

}  // namespace oscar
