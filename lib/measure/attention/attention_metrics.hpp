// SPDX-License-Identifier: MIT
// What a KV method does to attention on captured Q/K/V: sums per sequence that add up to layers and to the whole.
//   k_sqnr_db = 10 log10(sum |x|^2 / sum |x - x^|^2) over keys outside the windows of the last query
//   the other metrics: kernels/README.md
// K-only (V-only): only keys (values) of the history are quantised.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "dump/source.hpp"
#include "kernels/backend.hpp"
#include "measure/figures.hpp"
#include "measure/kv_method.hpp"
#include "model/run/runner.hpp"
#include "set/set.hpp"

namespace oscar {

/// What the outputs of one candidate add up to.
struct OutputSums {
  double error = 0, cosine = 0;
};

struct AttentionSums {
  AttentionErrors both;  // query_kl is kept in `kl` instead
  OutputSums k_only, v_only;
  RowErrors rows;  // of a query head: those of the KV head that it reads
  LogHistogram kl;

  void add(const AttentionSums& other);
  [[nodiscard]] AttentionMetrics metrics() const;
};

/// Sums over one or more sequences of one layer.
struct LayerSums {
  AttentionSums all;
  std::vector<AttentionSums> heads;  // query heads

  void add(const LayerSums& other);
};

/// Returns the intervals of what the figures of one method would be on other sequences, by the JSON names of the
/// figures.
[[nodiscard]] Intervals intervals_of(std::span<const AttentionSums> sequences);

/// Positions of the queries to look at: the last one and every `stride`-th before it, ascending.
[[nodiscard]] std::vector<std::int64_t> sampled_positions(std::int64_t num_tokens, std::int64_t stride);

/// One sequence of one layer under each of some methods, at every stride-th query. Holds as many methods at a time as
/// fit a fixed number of bytes, one at least: exact attention is computed once for those.
[[nodiscard]] std::vector<LayerSums> measure_attention(const QkvView& sequence, std::span<const KvMethod> methods,
                                                       int layer_id, std::int64_t stride, Precision precision,
                                                       Backend& backend);

/// Returns the relative squared error of attention outputs when one side of the part's only layer is coded: by this a
/// fit of the coded cache to a dump spends its bits. How much of it a model feels is not known.
[[nodiscard]] CodedDamage measure_attention_damage(QkvSource& source, const CodedPart& coded, Backend& backend);

/// Attention of a method inside a model that runs, for some of the queries of a sequence.
/// out (queries.size(), Hq, d_v): for the queries of these tokens, over all keys before them.
void attend(const KvMethod& method, int layer, const QkvView& qkv, SequenceRange queries, const ScoreRule& rule,
            Precision precision, Backend& backend, std::span<float> out);

/// How scores are made, of the layers that keep what a method stores; others keep exact attention.
[[nodiscard]] std::map<int, ScoreRule> rules_of(const ModelRunner& runner);

}  // namespace oscar
