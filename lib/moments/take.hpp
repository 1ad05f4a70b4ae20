// SPDX-License-Identifier: MIT
// Takes the moments of a layer from its rows. One walk over the rows takes all sums that need nothing but rows; a
// second one takes those that need a finished moment. Paper: OSCAR (arXiv 2605.17757); formulas stand at the members of
// SumsWanted. All functions read the stream from its start to its end, block by block (walk.hpp). They throw DataError:
// no tokens, NaN or Inf (naming chunk, token and head), nothing but zeros.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <vector>

#include "dump/source.hpp"
#include "kernels/backend.hpp"
#include "moments/sums.hpp"

namespace oscar {

/// Whether a sequence of a layer, counted from 0, is of a part of the data. An empty function means that all are.
using TakesSequence = std::function<bool(std::size_t sequence)>;

/// Which sums a walk takes, for T tokens, d channels and g query heads a KV head:
///   kQqt     (sum over tokens and the g query heads of q^T q) / (T g)
///   kKtk     (1/T) sum k^T k;   kVtv: the same of values;   kKeys: sum k
///   kFisher  FisherSums (kernels/types.hpp)
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
/// Returns the sums over each part of a layer's sequences, from the same walk.
[[nodiscard]] std::vector<AdditiveMoments> take(LayerStream& layer, std::span<const TakesSequence> parts,
                                                const SumsWanted& wanted, Backend& backend);

/// Part of a layer's sequences, with the query moments by which its values are weighted.
struct ScoreWeighting {
  const MatrixStack* query_covariance = nullptr;  // (Hkv, d, d)
  TakesSequence takes = {};
};
/// Returns the published "sst" of each part, from one walk: sum_t w_t v_t^T v_t / sum_t w_t with w_t = k_t C_h k_t^T,
/// C the finished query moments.
[[nodiscard]] std::vector<MomentSums> take_sst(LayerStream& layer, std::span<const ScoreWeighting> parts,
                                               Backend& backend);
/// Returns that of the whole layer.
[[nodiscard]] MomentSums take_sst(LayerStream& layer, const MatrixStack& query_covariance, Backend& backend);

}  // namespace oscar
