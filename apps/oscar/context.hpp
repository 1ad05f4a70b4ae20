// SPDX-License-Identifier: MIT
// What every command gets: the common options, and where its talk goes.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/status.hpp"
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
  /// The command line, for reports (command_text of command_line.hpp).
  std::vector<std::string> arguments;
  /// What addresses lead to; registered by main.
  NetworkPlaces network;
  /// Set by main once the options are known.
  std::unique_ptr<Status> status;
  /// What the command's callback asks main to return; 0 unless verify rejects.
  int exit_code = 0;
};

}  // namespace oscar
