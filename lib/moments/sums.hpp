// SPDX-License-Identifier: MIT
// What calibration remembers of a layer: fp64 sums of outer products, per KV head. Sums over parts of the data add up
// to the sum over the whole (merge). Non-goal: storing them.
// They are taken of a layer's rows: one walk over the rows takes all sums that need nothing but rows; a
// second one takes those that need a finished moment. Paper: OSCAR (arXiv 2605.17757); formulas stand at the members of
// SumsWanted. All functions read the stream from its start to its end, block by block (BlockCut). They throw DataError:
// no tokens, NaN or Inf (naming chunk, token and head), nothing but zeros.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "dump/source.hpp"
#include "kernels/backend.hpp"
#include "kernels/types.hpp"

namespace oscar {

/// The moments of a layer, in the order of their names, which files and options have. Objectives of recipes are
/// moments, too: the one whose eigenvectors keys, or values, are rotated by.
enum class Moment {
  kFisher,     // "fisher": of queries, weighted by what softmax feels of an error in a score
  kFisherKey,  // "fisher_key": of keys, weighted so
  kKeys,       // "keys": keys themselves, whose mean is subtracted from them
  kKtk,        // "ktk": of keys
  kQqt,        // "qqt": of queries
  kSst,        // "sst": of values, weighted by attention scores
  kVtv         // "vtv": of values
};

[[nodiscard]] std::string_view name_of(Moment moment);
/// Returns the moment of this name; nothing if there is none.
[[nodiscard]] std::optional<Moment> find_moment(std::string_view name);

/// sums[h] = sum of weight * x^T x, total[h] = sum of weights; the second moment of head h is sums[h] / total[h].
struct MomentSums {
  MatrixStack sums;           // (num_kv_heads, dim, dim)
  std::vector<double> total;  // (num_kv_heads)

  /// Adds another part. Throws DataError if heads or dimensions differ.
  void merge(const MomentSums& other);
  /// Returns the second moments; a total below 1e-12 counts as 1e-12, as in the published fitter.
  [[nodiscard]] MatrixStack mean() const;
};

/// Keys added up, (Hkv, d), and how many.
struct KeySums {
  std::vector<double> sums;
  double tokens = 0;

  void merge(const KeySums& other);
  /// Returns the mean key of each head, (Hkv, d).
  [[nodiscard]] std::vector<double> mean() const;
};

void merge(FisherSums& sums, const FisherSums& other);

/// FisherSums over their weight: what softmax feels of errors in the scores of a layer, per KV head.
struct FisherMoments {
  MatrixStack query, key;        // (Hkv, d, d)
  std::vector<double> key_mean;  // (Hkv, d)
};
/// Throws DataError if no sequence was longer than the windows: then there is no history to weigh.
[[nodiscard]] FisherMoments mean(const FisherSums& sums, Windows windows);

/// Throws DataError naming the token and head of a value that is NaN or infinite.
void require_finite(const QkvChunk& chunk);

/// The sums over the tokens of one layer that one walk over its rows takes. Parts of its data add up.
struct AdditiveMoments {
  std::map<Moment, MomentSums> sums;  // kKtk, kQqt, kVtv
  std::optional<FisherSums> fisher;
  std::optional<KeySums> keys;

  /// Adds another part, of which the same sums were taken.
  void merge(const AdditiveMoments& other);
};

/// Returns second moments about a mean m, where `moments` are about 0 and `own` is the mean of the rows themselves
/// (equal to m for plain moments): C - own^T m - m^T own + m^T m. own, mean: (count, d).
[[nodiscard]] MatrixStack centred(MatrixStack moments, std::span<const double> own, std::span<const double> mean);

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
