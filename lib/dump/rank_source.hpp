// SPDX-License-Identifier: MIT
// Dumps that the ranks of a tensor-parallel server wrote, each its own heads of every token, side by side:
// layer_<id>_rank<r>/{q,k,v,seq_lens}/<chunk>.pt, layer_<id>/rank_<r>/{q,k,v,seq_lens}/<chunk>.pt, or one file
// layer_<id>_rank<r>.pt with a dict of q, k, v and seq_lens, which is read whole when its layer is opened; or the rows
// of a calibration (server_file.hpp). As one source: queries of all ranks side by side, and one copy of each key and
// value head, of which neighbouring ranks hold the same if there are fewer heads than ranks.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "dump/server_file.hpp"
#include "dump/source.hpp"

namespace oscar {

struct RankLayout {
  int ranks = 0;                                              // 0: a dump without ranks
  bool in_files = false;                                      // else in folders
  std::vector<std::shared_ptr<const ServerFile>> files = {};  // of a calibration: of each rank, with all layers
  std::string remark = {};                                    // what is not there, in a clause
  std::vector<int> layer_ids;
  /// Returns the folder or file that holds a layer of a rank.
  std::function<std::filesystem::path(int layer_id, int rank)> path;
};

/// Finds how the ranks of a dump lie in its folder. Throws DataError that names a rank which a layer lacks, or if ranks
/// lie beside a dump without.
[[nodiscard]] RankLayout find_ranks(const std::filesystem::path& folder);

/// Returns what one rank of such a dump saw. Throws DataError for a file that lacks a tensor, or whose tensors do not
/// fit together.
[[nodiscard]] std::unique_ptr<QkvSource> open_rank_files(const RankLayout& layout, int rank,
                                                         const SourceLimits& limits);

/// Makes one source of the sources of all ranks, in the order of ranks. It holds a chunk of all ranks in memory. Throws
/// DataError, here or while reading, that names what differs: layers, tokens, types, or key heads that are neither the
/// same nor different.
[[nodiscard]] std::unique_ptr<QkvSource> merge_ranks(std::vector<std::unique_ptr<QkvSource>> ranks);

}  // namespace oscar
