// SPDX-License-Identifier: MIT
// The pieces by which sums over a layer are taken: a block is some whole chunks, each starts at zero, and blocks are
// added in order. Where blocks end follows from the chunks and from what the backend wants, not from who reads them:
// several processes can take the blocks of one layer, and their sums, added in order, have the bits of one process's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dump/source.hpp"
#include "kernels/backend.hpp"

namespace oscar {

/// What a block holds at least, in whole calls of the backend: on a CPU about 50 ms of one core's work a moment, on a
/// GPU, whose calls are larger, 40 ms.
inline constexpr std::int64_t kBlockTokens = 4096;

/// Returns the size of q, k and v together.
[[nodiscard]] std::int64_t bytes_per_token(const QkvView& view);

/// Cuts rows into calls of about equal size, as many as a power of two: so 2, 4, … processes get equal shares.
class BlockCut {
 public:
  /// bytes: of all rows that will come.
  BlockCut(const WorkShape& shape, std::int64_t bytes);

  enum class End { kNothing, kCall, kBlock };
  /// What ends with this chunk, the next one in order: nothing, a call of the backend, or a block with it.
  [[nodiscard]] End after(const QkvChunk& chunk);

 private:
  std::int64_t call_bytes_;       // wanted
  std::int64_t bytes_ = 0, end_;  // that came; where the call should end
  std::int64_t tokens_ = 0;       // of the block
};

/// Returns for each block of the stream the number of the chunk behind its last one. Reads no rows of a dump.
[[nodiscard]] std::vector<std::size_t> ends_of_blocks(LayerStream& layer, const WorkShape& shape);

/// Returns the chunks that process `rank` of `size` reads where the layers, which have the same chunks, are of one
/// text: whole blocks of every layer, in order, of about as many tokens for each process. Where there are too few
/// blocks, some get none.
[[nodiscard]] ChunkRange chunks_of_rank(std::span<const std::unique_ptr<LayerStream>> layers, const WorkShape& shape,
                                        int rank, int size);

}  // namespace oscar
