// SPDX-License-Identifier: MIT
// Takes the moments of a layer from its rows. One walk over the rows takes all sums that need nothing but rows; a
// second one takes those that need a finished moment. Paper: OSCAR (arXiv 2605.17757); formulas stand at the members of
// SumsWanted. All functions read the stream from its start to its end, block by block (BlockCut). They throw DataError:
// no tokens, NaN or Inf (naming chunk, token and head), nothing but zeros.
#pragma once

#include <cstdint>
#include <set>

#include "dump/source.hpp"
#include "kernels/backend.hpp"
#include "moments/sums.hpp"

namespace oscar {

/// Which sums a walk takes, for T tokens, d channels and g query heads a KV head:
///   kQqt     (sum over tokens and the g query heads of q^T q) / (T g)
///   kKtk     (1/T) sum k^T k;   kVtv: the same of values;   kKeys: sum k
///   kFisher  FisherSums (kernels/types.hpp), also before RoPE if the stream has such rows
struct SumsWanted {
  std::set<Moment> moments;  // kSst is left to take_sst()
  /// The windows outside of which kFisher weighs errors.
  Windows windows;
  /// Whether FisherSums::value is taken beside kFisher.
  bool value_reads = false;
};

/// Returns the sums over all rows of a layer.
[[nodiscard]] AdditiveMoments take(LayerStream& layer, const SumsWanted& wanted, Backend& backend);
/// Returns one moment of kQqt, kKtk, kVtv.
[[nodiscard]] MomentSums take(LayerStream& layer, Moment moment, Backend& backend);
/// Returns the published "sst" of a layer: sum_t w_t v_t^T v_t and sum_t w_t, with w_t = k_t C_h k_t^T and C the
/// finished query moments, (Hkv, d, d).
[[nodiscard]] MomentSums take_sst(LayerStream& layer, const MatrixStack& query_covariance, Backend& backend);

// How sums are made: block by block. A block is some whole chunks, each starts at zero, and blocks are added in order.
// Where blocks end follows from the chunks and from what the backend wants, so that bits do not depend on threads.

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

}  // namespace oscar
