// SPDX-License-Identifier: MIT
#include "model/gguf/gguf_merges.hpp"

#include <algorithm>
#include <tuple>
#include <unordered_map>

namespace oscar {
namespace {

struct Merge {
  double score = 0;
  std::size_t left_characters = 0, right_characters = 0;
  std::string_view left, right;
};

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_character));
}

}  // namespace

Json merges_by_score(std::span<const std::string> tokens, std::span<const int> types, std::span<const double> scores) {
  std::unordered_map<std::string_view, std::size_t> ids;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (types[id] == kGgufNormal || types[id] == kGgufUserDefined) ids.emplace(tokens[id], id);
  }
  std::vector<Merge> merges;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view token = tokens[id];
    if (!ids.contains(token)) continue;
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      if (!begins_character(token[cut])) continue;
      const std::string_view left = token.substr(0, cut), right = token.substr(cut);
      if (!ids.contains(left) || !ids.contains(right)) continue;
      merges.push_back({scores[id], characters(left), characters(right), left, right});
    }
  }
  std::ranges::stable_sort(merges, [](const Merge& a, const Merge& b) {
    return std::tie(a.score, a.left_characters, a.right_characters) >
           std::tie(b.score, b.left_characters, b.right_characters);
  });
  Json list = Json::array();
  for (const Merge& merge : merges) list.push_back({std::string(merge.left), std::string(merge.right)});
  return list;
}

}  // namespace oscar
