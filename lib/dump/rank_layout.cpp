// SPDX-License-Identifier: MIT
#include "dump/rank_layout.hpp"

#include <map>

#include "base/errors.hpp"
#include "dump/numbered.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

/// Layer -> ranks, of entries layer_<id>_rank<r><suffix>.
std::map<int, std::vector<int>> ranks_beside(const std::vector<std::string>& entries, std::string_view suffix) {
  std::map<int, std::vector<int>> found;
  for (const std::string& name : entries) {
    const std::size_t middle = name.find("_rank");
    if (!name.starts_with("layer_") || middle == std::string::npos || !name.ends_with(suffix)) continue;
    const std::string_view text = std::string_view(name).substr(0, name.size() - suffix.size());
    const auto layer = parse_number(text.substr(6, middle - 6)), rank = parse_number(text.substr(middle + 5));
    if (layer && rank) found[*layer].push_back(*rank);
  }
  return found;
}

std::map<int, std::vector<int>> ranks_inside(const fs::path& folder) {
  std::map<int, std::vector<int>> found;
  for (const int layer : numbered_entries(folder, "layer_", "")) {
    std::vector<int> ranks = numbered_entries(folder / ("layer_" + std::to_string(layer)), "rank_", "");
    if (!ranks.empty()) found[layer] = std::move(ranks);
  }
  return found;
}

RankLayout layout_of(std::map<int, std::vector<int>> found, RankLayout layout) {
  for (auto& [layer, ranks] : found) {
    layout.layer_ids.push_back(layer);
    if (!ranks.empty()) layout.ranks = std::max(layout.ranks, *std::max_element(ranks.begin(), ranks.end()) + 1);
  }
  for (auto& [layer, ranks] : found) {
    for (int rank = 0; rank < layout.ranks; ++rank) {
      if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) continue;
      throw DataError("rank " + std::to_string(rank) + " of " + std::to_string(layout.ranks) + " is missing",
                      layout.path(layer, rank).string(), "copy the dumps of all ranks into one folder");
    }
  }
  return layout;
}

}  // namespace

RankLayout find_ranks(const fs::path& folder) {
  const std::vector<std::string> entries = names_in(folder);
  const auto beside = [folder](const std::string& suffix) {
    return [folder, suffix](int layer, int rank) {
      return folder / ("layer_" + std::to_string(layer) + "_rank" + std::to_string(rank) + suffix);
    };
  };
  const auto inside = [folder](int layer, int rank) {
    return folder / ("layer_" + std::to_string(layer)) / ("rank_" + std::to_string(rank));
  };
  const RankLayout layouts[] = {layout_of(ranks_beside(entries, ""), {.path = beside("")}),
                                layout_of(ranks_beside(entries, ".pt"), {.in_files = true, .path = beside(".pt")}),
                                layout_of(ranks_inside(folder), {.path = inside})};
  const RankLayout* only = nullptr;
  bool plain = false;
  for (const int layer : numbered_entries(folder, "layer_", "")) {
    plain = plain || fs::exists(folder / ("layer_" + std::to_string(layer)) / "q");
  }
  for (const RankLayout& layout : layouts) {
    if (layout.ranks == 0) continue;
    if (plain || only != nullptr) {
      throw DataError("there is more than one dump in this folder", layout.path(layout.layer_ids.front(), 0).string(),
                      "leave one of them there");
    }
    only = &layout;
  }
  return only == nullptr ? RankLayout{} : *only;
}

}  // namespace oscar
