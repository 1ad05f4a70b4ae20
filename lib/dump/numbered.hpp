// SPDX-License-Identifier: MIT
// Names with numbers in them, as dumps have. For lib/dump only.
#pragma once

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

[[nodiscard]] inline std::optional<int> parse_number(std::string_view text) {
  int value = -1;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// Returns the names of what lies in a folder; none of what is no folder.
[[nodiscard]] inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  if (!std::filesystem::is_directory(folder)) return names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  return names;
}

/// Numbers n with `folder`/<prefix>n<suffix>, ascending; none of what is no folder.
[[nodiscard]] inline std::vector<int> numbered_entries(const std::filesystem::path& folder, std::string_view prefix,
                                                       std::string_view suffix) {
  std::vector<int> numbers;
  for (const std::string& name : names_in(folder)) {
    if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() <= prefix.size() + suffix.size()) continue;
    const auto middle = std::string_view(name).substr(prefix.size(), name.size() - prefix.size() - suffix.size());
    if (const auto number = parse_number(middle)) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace oscar
