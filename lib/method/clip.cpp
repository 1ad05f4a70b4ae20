// SPDX-License-Identifier: MIT
#include "method/clip.hpp"

#include <algorithm>
#include <memory>
#include <optional>

namespace oscar {
namespace {

QkvView view_of(const SampledSequence& sequence) {
  return {heads_view(sequence.q, "q"), heads_view(sequence.k, "k"), heads_view(sequence.v, "v")};
}

/// The codec at every ratio: for the keys, or for the values if the key codec is settled.
std::vector<HistoryCodecs> candidates(const RowCodec& codec, const std::optional<HistoryCodec>& key) {
  std::vector<HistoryCodecs> all;
  for (const double ratio : clip_candidates()) {
    const RowCodec candidate = with_ratio(codec, ratio);
    all.push_back(key ? HistoryCodecs{key, candidate} : HistoryCodecs{candidate, {}});
  }
  return all;
}

std::vector<std::unique_ptr<MixedSequence>> hold_all(const std::vector<SampledSequence>& sample, const Transform& key,
                                                     const Transform& value, Backend& backend) {
  std::vector<std::unique_ptr<MixedSequence>> held;
  for (const SampledSequence& sequence : sample) {
    held.push_back(backend.hold({view_of(sequence), sequence.query_positions, &key, &value}));
  }
  return held;
}

/// Per candidate and KV head, over all sequences.
std::vector<std::vector<AttentionErrors>> errors_of_heads(const std::vector<std::unique_ptr<MixedSequence>>& sequences,
                                                          const std::vector<HistoryCodecs>& candidates, int kv_heads,
                                                          Windows windows) {
  std::vector<std::vector<AttentionErrors>> sums(candidates.size(),
                                                 std::vector<AttentionErrors>(static_cast<std::size_t>(kv_heads)));
  for (const auto& sequence : sequences) {
    const auto errors = sequence->compare(candidates, windows);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const std::size_t group = errors[i].size() / sums[i].size();
      for (std::size_t head = 0; head < errors[i].size(); ++head) sums[i][head / group].add(errors[i][head]);
    }
  }
  return sums;
}

AttentionErrors total(const std::vector<AttentionErrors>& heads) {
  AttentionErrors sum;
  for (const AttentionErrors& head : heads) sum.add(head);
  return sum;
}

using Metric = double (*)(const AttentionErrors&);
double mean_kl(const AttentionErrors& errors) { return errors.softmax_kl / static_cast<double>(errors.queries); }
double output_rel_error(const AttentionErrors& errors) {
  return errors.output_error / std::max(errors.output_norm, 1e-300);
}

/// errors: by candidate and KV head.
SideClipScores scores_by(const std::vector<std::vector<AttentionErrors>>& errors, Metric metric) {
  SideClipScores scores{{}, std::vector<std::vector<double>>(errors.front().size())};
  for (const std::vector<AttentionErrors>& heads : errors) {
    scores.layer.push_back(metric(total(heads)));
    for (std::size_t head = 0; head < heads.size(); ++head) scores.heads[head].push_back(metric(heads[head]));
  }
  return scores;
}

}  // namespace

RowCodec with_ratio(RowCodec codec, double ratio) {
  codec.clip_ratio = ratio;
  return codec;
}

const std::vector<double>& clip_candidates() {
  static const std::vector<double> kRatios{1.0, 0.98, 0.96, 0.95, 0.94, 0.93, 0.92, 0.9, 0.88, 0.85};
  return kRatios;
}

ClipScores score_clip_ratios(const std::vector<SampledSequence>& sample, const Transform& key, const Transform& value,
                             const HistoryCodecs& codecs, bool keys_per_head, Windows windows, Backend& backend) {
  const auto held = hold_all(sample, key, value, backend);
  const auto kv_heads = static_cast<int>(sample.front().k.shape[1]);
  const auto sweep = [&](const RowCodec& codec, const std::optional<HistoryCodec>& settled_key, Metric metric) {
    return scores_by(errors_of_heads(held, candidates(codec, settled_key), kv_heads, windows), metric);
  };
  ClipScores scores{.key = sweep(*codecs.key, std::nullopt, mean_kl), .value = {}};
  HistoryCodec key_codec = with_ratio(*codecs.key, best_clip_ratio(scores.key.layer));
  if (keys_per_head) key_codec.head_clip_ratios = best_clip_ratios(scores.key.heads);
  scores.value = sweep(*codecs.value, key_codec, output_rel_error);
  return scores;
}

double best_clip_ratio(const std::vector<double>& scores) {
  const double enough = *std::min_element(scores.begin(), scores.end()) * (1 + kClipSlack);
  const auto best = std::find_if(scores.begin(), scores.end(), [&](double score) { return !(score > enough); });
  return clip_candidates()[static_cast<std::size_t>(best - scores.begin())];
}

std::vector<double> best_clip_ratios(const std::vector<std::vector<double>>& heads) {
  std::vector<double> ratios;
  for (const std::vector<double>& scores : heads) ratios.push_back(best_clip_ratio(scores));
  return ratios;
}

}  // namespace oscar
