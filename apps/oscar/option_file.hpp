// SPDX-License-Identifier: MIT
// --config: which options a TOML file sets, and on which line, for errors and for --verbose.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace oscar {

class OptionFile : public CLI::ConfigTOML {
 public:
  /// Reads the items as CLI11 does, and remembers their lines.
  [[nodiscard]] std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

  /// Line (from 1) that sets "fit.threads", or that opens section "fit"; none if no file does.
  [[nodiscard]] std::optional<int> line_of(const std::string& full_name) const;

 private:
  struct Line {
    std::string name;  // "fit.threads"; of a section "fit"
    int number;
  };
  mutable std::vector<Line> lines_;  // the parser asks a constant formatter
};

}  // namespace oscar
