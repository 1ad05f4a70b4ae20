// SPDX-License-Identifier: MIT
// The dumps of a tensor-parallel server's ranks as one source: queries of all ranks side by side, and one copy of each
// key and value head, of which neighbouring ranks hold the same if there are fewer heads than ranks.
#pragma once

#include <memory>
#include <vector>

#include "dump/rank_layout.hpp"
#include "dump/source.hpp"

namespace oscar {

/// By rank. Memory: a chunk of all ranks. Throws DataError, here or while reading, that names what differs: layers,
/// tokens, types, or key heads that are neither the same nor different.
[[nodiscard]] std::unique_ptr<QkvSource> merge_ranks(std::vector<std::unique_ptr<QkvSource>> ranks);

/// One rank of a layout of files.
[[nodiscard]] std::unique_ptr<QkvSource> open_rank_files(const RankLayout& layout, int rank,
                                                         const SourceLimits& limits);

}  // namespace oscar
