// SPDX-License-Identifier: MIT
// One walk over the rows of a layer, in which any number of sums are taken. For moments/ only.
//   Each sum is made block by block: a block is some whole chunks, each starts at zero, and blocks are added in order.
//   Where blocks end follows from the chunks and from what the backend wants, so that bits do not depend on threads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dump/source.hpp"
#include "kernels/backend.hpp"
#include "moments/take.hpp"

namespace oscar {

/// What a block holds at least, in whole calls of the backend: on a CPU about 50 ms of one core's work a moment, on a
/// GPU, whose calls are larger, 40 ms.
inline constexpr std::int64_t kBlockTokens = 4096;

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

using Chunks = std::vector<QkvChunk>;

/// Reads the layer from its start to its end, once, and gives each part of its sequences its rows. add: takes the rows
/// of one call of the backend to the current block of a part; end_block: that block has all its rows.
void walk(LayerStream& layer, std::span<const TakesSequence> parts, const WorkShape& shape,
          const std::function<void(std::size_t part, const Chunks& chunks)>& add,
          const std::function<void(std::size_t part)>& end_block);

/// Throws DataError that names the value which spoilt a sum, or NumericalError if there is none.
[[noreturn]] void throw_not_finite(const Chunks& chunks);

}  // namespace oscar
