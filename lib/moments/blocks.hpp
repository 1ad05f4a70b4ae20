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

class BlockCut {
 public:
  explicit BlockCut(const WorkShape& shape) : call_bytes_(shape.bytes_per_call) {}

  enum class End { kNothing, kCall, kBlock };
  /// What ends with this chunk, the next one in order: nothing, a call of the backend, or a block with it.
  [[nodiscard]] End after(const QkvChunk& chunk);

 private:
  std::int64_t call_bytes_;  // wanted
  std::int64_t bytes_ = 0, tokens_ = 0;
};

/// Returns for each block of the stream the number of the chunk behind its last one. Reads no rows of a dump.
[[nodiscard]] std::vector<std::size_t> ends_of_blocks(LayerStream& layer, const WorkShape& shape);

/// Returns the chunks that process `rank` of `size` reads where the layers, which have the same chunks, are of one
/// text: whole blocks of every layer, in order, of about as many tokens for each process. Where there are too few
/// blocks, some get none.
[[nodiscard]] ChunkRange chunks_of_rank(std::span<const std::unique_ptr<LayerStream>> layers, const WorkShape& shape,
                                        int rank, int size);

}  // namespace oscar
