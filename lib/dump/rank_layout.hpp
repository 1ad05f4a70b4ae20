// SPDX-License-Identifier: MIT
// Dumps that the ranks of a tensor-parallel server wrote, each its own heads of every token, side by side:
// layer_<id>_rank<r>/{q,k,v,seq_lens}/<chunk>.pt, layer_<id>/rank_<r>/{q,k,v,seq_lens}/<chunk>.pt, or one file
// layer_<id>_rank<r>.pt with a dict of q, k, v and seq_lens.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

namespace oscar {

struct RankLayout {
  int ranks = 0;          // 0: a dump without ranks
  bool in_files = false;  // else in folders
  std::vector<int> layer_ids;
  /// Returns the folder or file that holds a layer of a rank.
  std::function<std::filesystem::path(int layer_id, int rank)> path;
};

/// Finds how the ranks of a dump lie in its folder. Throws DataError that names a rank which a layer lacks, or if ranks
/// lie beside a dump without.
[[nodiscard]] RankLayout find_ranks(const std::filesystem::path& folder);

}  // namespace oscar
