// SPDX-License-Identifier: MIT
// Dumps of which each rank wrote one file a layer, layer_<id>_rank<r>.pt: a dict of q, k, v and seq_lens. A file is
// read whole when its layer is opened.
#pragma once

#include <memory>

#include "dump/rank_layout.hpp"
#include "dump/source.hpp"

namespace oscar {

/// Returns what one rank of such a dump saw. Throws DataError for a file that lacks a tensor, or whose tensors do not
/// fit together.
[[nodiscard]] std::unique_ptr<QkvSource> open_rank_files(const RankLayout& layout, int rank,
                                                         const SourceLimits& limits);

}  // namespace oscar
