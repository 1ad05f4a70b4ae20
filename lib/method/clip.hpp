// SPDX-License-Identifier: MIT
// Clip ratios by what they do to attention, with windows and serving precision in place, on a fixed sample of the
// layer.
//   keys:   by the softmax KL(exact || keys through the codec)
//   values: by the relative output error, keys through the codec at their chosen ratio
// The least clipping is taken whose score is within kClipSlack of the lowest. What clipping takes away is a bias: it
// flattens attention and shrinks outputs in every layer alike, and adds up on the way through the model, while noise
// averages out. The score of one layer cannot tell them apart, and near its lowest value it is flat.
// One ratio per layer, or one per KV head: what a head's queries lose depends on that head's codec alone, so that one
// sweep over the candidates tells both.
// Squared error of the rows themselves is the wrong judge: it prefers heavier clipping, which flattens attention.
#pragma once

#include <vector>

#include "kernels/backend.hpp"
#include "moments/sample.hpp"

namespace oscar {

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
