// SPDX-License-Identifier: MIT
#include "option_file.hpp"

#include <algorithm>
#include <iterator>
#include <sstream>

namespace oscar {

std::vector<CLI::ConfigItem> OptionFile::from_config(std::istream& input) const {
  const std::string text{std::istreambuf_iterator<char>(input), {}};
  std::istringstream lines(text);
  std::string line, section;
  lines_.clear();
  for (int number = 1; std::getline(lines, line); ++number) {
    CLI::detail::trim(line);
    if (line.size() < 3 || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[' && line.back() == ']') {
      section = line.substr(1, line.size() - 2);
      lines_.push_back({section, number});
      continue;
    }
    std::string name = line.substr(0, line.find('='));
    CLI::detail::trim(name);
    CLI::detail::remove_quotes(name);
    lines_.push_back({section.empty() || section == "default" ? name : section + "." + name, number});
  }
  std::istringstream again(text);
  return CLI::ConfigTOML::from_config(again);
}

std::optional<int> OptionFile::line_of(const std::string& full_name) const {
  const auto found = std::ranges::find(lines_, full_name, &Line::name);
  return found == lines_.end() ? std::nullopt : std::optional(found->number);
}

}  // namespace oscar
