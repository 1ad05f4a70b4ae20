// SPDX-License-Identifier: MIT
#include "base/near_names.hpp"

#include <algorithm>
#include <cctype>
#include <utility>

namespace oscar {
namespace {

constexpr std::size_t kLongest = 400;  // characters: no name is longer, and texts of others may be

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// Number of inserted, deleted, replaced or swapped neighbouring letters between two words.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const std::size_t replaced = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::vector<std::string> near_names(const std::string& word, const std::vector<std::string>& names, std::size_t most) {
  std::vector<std::pair<std::size_t, std::string>> near;
  if (word.size() > kLongest) return {};
  for (const std::string& name : names) {
    if (name.size() > kLongest) continue;
    const std::size_t distance = edit_distance(lower_case(word), lower_case(name));
    if (distance <= std::max<std::size_t>(1, word.size() / 3)) near.emplace_back(distance, name);
  }
  std::ranges::stable_sort(near, {}, [](const auto& pair) { return pair.first; });
  near.resize(std::min(near.size(), most));
  std::vector<std::string> found;
  for (auto& [distance, name] : near) found.push_back(std::move(name));
  return found;
}

std::string nearest_name(const std::string& word, const std::vector<std::string>& names) {
  const std::vector<std::string> near = near_names(word, names, 1);
  return near.empty() ? "" : near.front();
}

UsageError unknown_choice(const std::string& value, const std::string& option, const std::vector<std::string>& names,
                          const std::string& hint) {
  std::string remedy = hint.empty() ? "" : hint + "; ";
  if (const std::string near = nearest_name(value, names); !near.empty()) remedy += "did you mean " + near + "? ";
  for (std::size_t i = 0; i < names.size(); ++i) remedy += (i == 0 ? "use one of: " : ", ") + names[i];
  return {"unknown value \"" + value + "\"", option, remedy};
}

}  // namespace oscar
