// SPDX-License-Identifier: MIT
// What a fit does to each layer, and the eigenproblems of it: a recipe has every choice that the mathematics knows, and
// none about data or servers.
//
// The stretch is the best linear transform of keys, where OSCAR (arXiv 2605.17757) takes the best rotation. Error in
// transformed space grows with tr(T^T C_K T), its effect on logits with tr(T^-1 C_Q T^-T); over M = T T^T the product
// is smallest at the matrix geometric mean
//   M = C_K^-1/2 (C_K^1/2 C_Q C_K^1/2)^1/2 C_K^-1/2
// of C / mean eigenvalue + lambda I. Keys are written with T = M^(power/2) E H P, E the eigenvectors of
// M^(power/2) C_K M^(power/2), and queries read with T^-T.
//
// Clip ratios are chosen by what they do to attention, with windows and serving precision in place, on a fixed sample
// of the layer.
//   keys:   by the softmax KL(exact || keys through the codec)
//   values: by the relative output error, keys through the codec at their chosen ratio
// The least clipping is taken whose score is within kClipSlack of the lowest. What clipping takes away is a bias: it
// flattens attention and shrinks outputs in every layer alike, and adds up on the way through the model, while noise
// averages out. The score of one layer cannot tell them apart, and near its lowest value it is flat.
// One ratio per layer, or one per KV head: what a head's queries lose depends on that head's codec alone, so that one
// sweep over the candidates tells both.
// Squared error of the rows themselves is the wrong judge: it prefers heavier clipping, which flattens attention.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "kernels/backend.hpp"
#include "kernels/mixed_sequence.hpp"
#include "kernels/types.hpp"
#include "method/compose.hpp"
#include "moments/sample.hpp"
#include "moments/sums.hpp"
#include "set/set.hpp"

namespace oscar {

struct Recipe {
  enum class Kind {
    kSpectral,  // keys are rotated by the eigenvectors of the key objective, values by those of sst
    kHadamard,  // no moments at all
    kStretch    // the best linear transform of keys (see above)
  } kind = Kind::kSpectral;
  /// The name by which people asked for it: "oscar", "stretch" …
  std::string name;
  Moment key_objective = Moment::kQqt;  // or kFisher
  Composition composition = Composition::kRHPbr;
  /// One matrix per KV head instead of one per layer.
  bool key_per_head = false, value_per_head = false;
  /// Of keys, one clip ratio per KV head instead of one per layer.
  bool key_clip_per_head = false;
  /// Each head's mean key is subtracted from every key.
  bool center = false;
  double stretch_power = 1, stretch_lambda = 1e-2;
  HistoryCodecs codecs;  // both are set; clip ratios are fitted or fixed elsewhere
  Windows windows;

  /// "<objective>_<composition>", with "stretch_" before it where it applies; "hadamard".
  [[nodiscard]] std::string key_name() const;
  [[nodiscard]] std::string value_name() const;
  /// Returns the moments that must be known before anything is solved. kKeys stands for sums of keys, for their mean.
  [[nodiscard]] std::set<Moment> moments() const;
};

/// What is known of a layer's rows before any eigenproblem is solved.
struct LayerMoments {
  int layer_id = 0, key_dim = 0, value_dim = 0;
  /// (Hkv, d, d) each; kFisher is that of queries.
  std::map<Moment, MatrixStack> covariance;
  std::vector<double> key_mean, fisher_key_mean;  // (Hkv, d)
};

using LayersMoments = std::span<const LayerMoments* const>;

/// Returns the transforms, eigenvalues and covariances of layers, in order, rounded to float32. Eigenproblems of all
/// layers are solved together. Clip ratios are left at 0. A stretch that bfloat16 would spoil is regularised until it
/// does not, with a notice; throws NumericalError if that takes too much.
[[nodiscard]] std::vector<LayerRotation> solve(LayersMoments layers, const Recipe& recipe, Backend& backend,
                                               Status& status);

struct StretchOptions {
  /// 1: the geometric mean; 0: a rotation.
  double power = 1;
  /// The part of the mean eigenvalue that is added to both covariances.
  double lambda = 1e-2;
  /// Singular values of T are kept within this ratio.
  double max_condition = 1000;
  Composition composition = Composition::kRHPbr;
};

struct Stretched {
  /// One pair of matrices per KV head, exact inverses up to rounding to float32.
  Transform transform;
  /// Per head: of M^(power/2) C_K M^(power/2), ascending, (heads, d).
  std::vector<double> eigenvalues;
  /// Per head: how much less logit error than under any rotation, tr(C_K) tr(C_Q) / tr((C_K^1/2 C_Q C_K^1/2)^1/2)^2.
  std::vector<double> predicted_gain;
  /// Per head: largest / smallest singular value of T.
  std::vector<double> condition;
  /// Per head: sum of squared logit errors that bfloat16 copies of the two matrices make by themselves, over that of
  /// the logits.
  std::vector<double> bf16_disturbance;
};

/// One problem: second moments of the same heads, (heads, d, d) each.
struct StretchProblem {
  const MatrixStack* key = nullptr;
  const MatrixStack* query = nullptr;
};

/// All problems have the same head dimension; eigenproblems are solved together.
[[nodiscard]] std::vector<Stretched> stretch(const std::vector<StretchProblem>& problems, const StretchOptions& options,
                                             Backend& backend);

/// Per candidate: mean softmax KL for keys, relative output error for values.
struct SideClipScores {
  std::vector<double> layer;
  std::vector<std::vector<double>> heads;  // of each KV head
};
struct ClipScores {
  SideClipScores key, value;
};

/// `codec` with another clip ratio.
[[nodiscard]] RowCodec with_ratio(RowCodec codec, double ratio);

/// Ratios that are tried, descending; 1 = nothing is clipped.
[[nodiscard]] const std::vector<double>& clip_candidates();

/// Scores every candidate for this layer; codecs: of both sides, at any ratio. keys_per_head: values are judged beside
/// keys at the ratio of each head instead of the layer's.
[[nodiscard]] ClipScores score_clip_ratios(const std::vector<SampledSequence>& sample, const Transform& key,
                                           const Transform& value, const HistoryCodecs& codecs, bool keys_per_head,
                                           Windows windows, Backend& backend);

/// How far above the lowest a score counts as the same.
inline constexpr double kClipSlack = 0.05;

/// The largest ratio (least clipping) of which the score is at most (1 + kClipSlack) times the lowest.
[[nodiscard]] double best_clip_ratio(const std::vector<double>& scores);
/// Returns that ratio for each head.
[[nodiscard]] std::vector<double> best_clip_ratios(const std::vector<std::vector<double>>& heads);

}  // namespace oscar
