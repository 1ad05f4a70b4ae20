// SPDX-License-Identifier: MIT
#include "settings.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "command_text.hpp"
#include "usage_errors.hpp"

namespace oscar {
namespace {

bool is_given(const CLI::App& app, const CLI::Option& option) {
  return std::ranges::find(app.parse_order(), &option) != app.parse_order().end();
}

/// "fit.threads", as a configuration file calls it.
std::string name_in_file(const CLI::App& app, const CLI::App& command, const std::string& name) {
  return &command == &app
             ? name
             : CLI::detail::find_and_replace(full_name(command), " ", ".").substr(app.get_name().size() + 1) + "." +
                   name;
}

/// "--name", or that of an argument.
std::string shown_name(const CLI::Option& option) { return option.get_name(option.get_positional(), false); }

std::string shown_value(const CLI::Option& option) {
  if (option.count() > 0) return without_secrets(CLI::detail::join(option.results(), " "));
  std::string fallback = option.get_type_size() == 0 ? "" : option.get_default_str();
  return fallback.empty() ? "(none)" : fallback;
}

void tell_settings_of(CLI::App& app, const CLI::App& command, const OptionFile& config, Status& status) {
  for (const CLI::Option* option : command.get_options()) {
    if (option == command.get_help_ptr() || option->get_name() == "--version") continue;
    status.detail(shown_name(*option) + " = " + shown_value(*option) + " (" + source_of(app, command, *option, config) +
                  ")");
  }
}

/// A figure of /proc/self/io, 0 where the system keeps none.
std::uint64_t bytes_of(const std::string& name) {
  std::ifstream file("/proc/self/io");
  std::string label;
  for (std::uint64_t value = 0; file >> label >> value;) {
    if (label == name + ":") return value;
  }
  return 0;
}

}  // namespace

std::string source_of(const CLI::App& app, const CLI::App& command, const CLI::Option& option,
                      const OptionFile& config) {
  if (is_given(command, option) || is_given(app, option)) return "command line";
  if (option.count() == 0) return "default";
  for (const std::string& name : option.get_lnames()) {
    const auto line = config.line_of(name_in_file(app, command, name));
    if (line) return app["--config"]->as<std::string>() + " line " + std::to_string(*line);
  }
  const std::string variable = option.get_envname();
  const bool set = !variable.empty() && std::getenv(variable.c_str()) != nullptr;
  return set ? variable + " in the environment" : "default";
}

void tell_settings(CLI::App& app, const OptionFile& config, Status& status) {
  CLI::App& command = active_command(app);
  status.detail("settings of " + full_name(command) + ":");
  tell_settings_of(app, command, config, status);
  if (&command != &app) tell_settings_of(app, app, config, status);
}

void tell_costs(std::chrono::steady_clock::time_point started, Status& status) {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  status.detail(
      fmt::format("took {:.2f} s and {:.2f} s of processors, {}, peak memory {:.1f} MB, {:.1f} MB "
                  "read, {:.1f} MB written",
                  seconds_since(started), seconds(usage.ru_utime) + seconds(usage.ru_stime),
                  plural(num_threads(), "thread"), static_cast<double>(usage.ru_maxrss) / 1e3,
                  static_cast<double>(bytes_of("rchar")) / 1e6, static_cast<double>(bytes_of("wchar")) / 1e6));
}

}  // namespace oscar
