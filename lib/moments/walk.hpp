// SPDX-License-Identifier: MIT
// One walk over the rows of a layer, in which any number of sums are taken. For moments/ only.
//   Each sum is made block by block: a block is some whole chunks, each starts at zero, and blocks are added in order.
//   Where blocks end follows from the chunks and from what the backend wants, so that bits do not depend on threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
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

/// A sum that is being taken.
class RunningSum {
 public:
  virtual ~RunningSum() = default;
  /// Adds the rows of one call of the backend to the current block. Throws DataError for values that are not finite.
  virtual void add(const Chunks& chunks) = 0;
  virtual void end_block() = 0;
};

/// Sums over the sequences of a layer that `takes` says (empty: all of them). They must outlive the walk.
struct WalkPart {
  TakesSequence takes;
  std::vector<RunningSum*> sums;
};

/// Reads the layer from its start to its end, once, and gives each part its rows.
void walk(LayerStream& layer, std::span<const WalkPart> parts, const WorkShape& shape);

/// Throws DataError that names the value which spoilt a sum, or NumericalError if there is none.
[[noreturn]] void throw_not_finite(const Chunks& chunks);
[[noreturn]] void throw_no_tokens();

[[nodiscard]] bool is_finite(const MomentSums& sums);
[[nodiscard]] bool is_finite(const FisherSums& sums);
[[nodiscard]] bool is_finite(const KeySums& sums);
inline void add_block(MomentSums& total, const MomentSums& block) { total.merge(block); }
inline void add_block(KeySums& total, const KeySums& block) { total.merge(block); }
inline void add_block(FisherSums& total, const FisherSums& block) { merge(total, block); }

template <class Sums>
class BlockwiseSum : public RunningSum {
 public:
  /// Returns sums of nothing, by the shape of a chunk.
  using Zero = std::function<Sums(const QkvChunk&)>;
  /// Does the arithmetic of one call.
  using Add = std::function<void(const Chunks&, Sums&)>;

  BlockwiseSum(Zero zero, Add add) : zero_(std::move(zero)), add_(std::move(add)) {}

  void add(const Chunks& chunks) override {
    if (!block_) block_ = zero_(chunks.front());
    add_(chunks, *block_);
    if (!is_finite(*block_)) throw_not_finite(chunks);
  }

  void end_block() override {
    if (!block_) return;
    if (total_) {
      add_block(*total_, *block_);
    } else {
      total_ = std::move(*block_);
    }
    block_.reset();
  }

  /// Returns the sum, once. Throws DataError if there were no tokens.
  [[nodiscard]] Sums total() {
    if (!total_) throw_no_tokens();
    return std::move(*total_);
  }

 private:
  Zero zero_;
  Add add_;
  std::optional<Sums> total_, block_;
};

}  // namespace oscar
