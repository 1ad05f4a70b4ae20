// SPDX-License-Identifier: MIT
// The pieces by which sums over a layer are taken: a block is some whole chunks, each starts at zero, and blocks are
// added in order. Where blocks end follows from the chunks and from what the backend wants.
#pragma once

#include <cstdint>

#include "dump/source.hpp"
#include "kernels/backend.hpp"

namespace oscar {

/// What a block holds at least, in whole calls of the backend: on a CPU about 50 ms of one core's work a moment, on a
/// GPU, whose calls are larger, 40 ms.
inline constexpr std::int64_t kBlockTokens = 4096;

/// Returns the size of q, k and v together.
[[nodiscard]] std::int64_t bytes_per_token(const QkvView& view);

/// Cuts rows into calls of about equal size, as many as a power of two.
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

}  // namespace oscar
