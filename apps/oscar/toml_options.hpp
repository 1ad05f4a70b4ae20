// SPDX-License-Identifier: MIT
// --config FILE: TOML 1.0, with a table for each command.
#pragma once

#include <istream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

namespace oscar {

/// Reads the file for CLI11, whose own reader knows little of TOML.
class TomlOptions : public CLI::ConfigTOML {
 public:
  /// program: has the option --config.
  explicit TomlOptions(const CLI::App& program) : program_(program) {}

  /// Throws UsageError that names the file and the line.
  std::vector<CLI::ConfigItem> from_config(std::istream& text) const override;
  /// Whether the file that was read has this name in the section of a command ("": before all sections).
  [[nodiscard]] bool has(const std::string& command, const std::string& name) const {
    return names_.contains({command, name});
  }

 private:
  const CLI::App& program_;
  mutable std::set<std::pair<std::string, std::string>> names_;
};

}  // namespace oscar
