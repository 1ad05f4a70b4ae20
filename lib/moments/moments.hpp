// SPDX-License-Identifier: MIT
// What calibration remembers of a layer: fp64 sums of outer products, per KV head. Sums of parts of the data add up to
// the sum of the whole (merge). Paper: OSCAR (arXiv 2605.17757); formulas stand at the functions. Non-goal: storing
// rows.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "dump/source.hpp"
#include "kernels/backend.hpp"

namespace oscar {

/// sums[h] = sum of weight * x^T x, total[h] = sum of weights; the second moment of head h is sums[h] / total[h].
struct MomentSums {
  MatrixStack sums;           // (num_kv_heads, dim, dim)
  std::vector<double> total;  // (num_kv_heads)

  /// Adds another part. Throws DataError if heads or dimensions differ.
  void merge(const MomentSums& other);
  /// Second moments; a total below 1e-12 counts as 1e-12, as in the published fitter.
  [[nodiscard]] MatrixStack mean() const;
};

enum class Side { kKey, kValue };

/// Each reads the stream from its start to its end, block by block (stats/blocks.hpp). Throws DataError: no tokens, NaN
/// or Inf (naming chunk, token and head), nothing but zeros. C_h = (sum over tokens and the g query heads of head h of
/// q^T q) / (T g). Processes that share the layer's text (dump/text_share.hpp) all get the sum over all of it.
[[nodiscard]] MomentSums query_moments(LayerStream& layer, Backend& backend);
/// (1/T) sum x^T x of the keys or the values.
[[nodiscard]] MomentSums plain_moments(LayerStream& layer, Side side, Backend& backend);
/// Published "sst": sum_t w_t v_t^T v_t / sum_t w_t with w_t = k_t C_h k_t^T; needs the finished query moments C.
[[nodiscard]] MomentSums score_weighted_value_moments(LayerStream& layer, const MatrixStack& query_covariance,
                                                      Backend& backend);
/// The paper's V^T S^T S V: second moment of exact attention outputs, softmax causal inside each sequence.
[[nodiscard]] MomentSums output_moments(LayerStream& layer, Backend& backend);
/// Whether FisherSums::value is taken, too.
enum class ValueReads { kNotTaken, kTaken };
/// FisherSums of the whole stream; of part of the data, they add up.
[[nodiscard]] FisherSums fisher_sums(LayerStream& layer, Windows windows, Backend& backend,
                                     ValueReads values = ValueReads::kNotTaken);
void merge(FisherSums& sums, const FisherSums& other);
/// What softmax feels of errors in the scores of a layer, per KV head: the sums over their weight.
struct FisherMoments {
  MatrixStack query, key;        // (Hkv, d, d)
  std::vector<double> key_mean;  // (Hkv, d)
};
/// Throws DataError if no sequence was longer than the windows: then there is no history to weigh.
[[nodiscard]] FisherMoments mean(const FisherSums& sums, Windows windows);

/// Keys added up, (Hkv, d), and how many. Added up on the CPU.
struct KeySums {
  std::vector<double> sums;
  double tokens = 0;

  void merge(const KeySums& other);
  /// Mean key of each head.
  [[nodiscard]] std::vector<double> mean() const;
};
[[nodiscard]] KeySums key_sums(LayerStream& layer, Backend& backend);

/// What is taken of a layer in one pass: sums over tokens, so that parts of its data add up.
struct AdditiveMoments {
  std::map<std::string, MomentSums> sums;  // qqt, ktk, oto, vtv
  std::optional<FisherSums> fisher;
  std::optional<KeySums> keys;

  void merge(const AdditiveMoments& other);
};

/// Second moments about a mean m, where `moments` are about 0 and `own` is the mean of the rows themselves (equal to m
/// for plain moments): C - own^T m - m^T own + m^T m. means: (count, d).
[[nodiscard]] MatrixStack centred(MatrixStack moments, std::span<const double> own, std::span<const double> mean);

/// Second moments of the INT2 residual of keys (or values) under `rotation`, in the rotated basis ("uresidual").
[[nodiscard]] MomentSums residual_moments(LayerStream& layer, Side side, const MatrixStack& rotation, Backend& backend);

}  // namespace oscar
