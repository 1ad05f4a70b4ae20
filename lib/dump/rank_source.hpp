// SPDX-License-Identifier: MIT
// The dumps of a tensor-parallel server's ranks as one source: queries of all ranks side by side, and one copy of each
// key and value head, of which neighbouring ranks hold the same if there are fewer heads than ranks.
#pragma once

#include <memory>
#include <vector>

#include "dump/source.hpp"

namespace oscar {

/// Makes one source of the sources of all ranks, in the order of ranks. It holds a chunk of all ranks in memory. Throws
/// DataError, here or while reading, that names what differs: layers, tokens, types, or key heads that are neither the
/// same nor different.
[[nodiscard]] std::unique_ptr<QkvSource> merge_ranks(std::vector<std::unique_ptr<QkvSource>> ranks);

}  // namespace oscar
