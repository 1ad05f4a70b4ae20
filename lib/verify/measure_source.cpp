// SPDX-License-Identifier: MIT
#include "verify/measure_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/errors.hpp"
#include "dump/source.hpp"

namespace oscar::verify {
namespace {

/// What one layer tells.
struct LayerMeasurements {
  DataMoments moments;
  std::vector<LayerSums> methods;
  std::vector<std::vector<AttentionSums>> sequences;  // [method][sequence], without histograms
  std::int64_t tokens = 0, queries = 0;
  KeysRead keys;
};

/// Throws DataError that names the first row of a sequence which has NaN or Inf, if one has.
void require_finite(const QkvChunk& chunk, const SequenceRange& range, int id) {
  for (const auto& [name, x] : {std::pair("q", chunk.view.q), {"k", chunk.view.k}, {"v", chunk.view.v}}) {
    std::vector<float> row(static_cast<std::size_t>(x.num_heads) * static_cast<std::size_t>(x.head_dim));
    for (std::int64_t t = range.begin; t < range.end; ++t) {
      x.token_rows(t, 1, row.data());
      if (std::ranges::all_of(row, [](float value) { return std::isfinite(value); })) continue;
      throw DataError(std::string(name) + " has NaN or Inf", fmt::format("{}, layer {}, token {}", chunk.where, id, t),
                      chunk.remedy + std::string(", or leave the sequence out"));
    }
  }
}

/// What the methods do to the attention of one sequence of layer `id`.
void take_attention(const MeasurePlan& plan, Backend& backend, int id, const QkvChunk& chunk,
                    const SequenceRange& range, std::int64_t stride, LayerMeasurements& found) {
  for (auto& sums : found.sequences) sums.emplace_back();
  if (range.size() == 0) return;
  const auto of_methods =
      measure_attention(chunk.view.tokens(range), plan.methods, id, stride, plan.precision, backend);
  const AttentionErrors& exact = of_methods.front().all.both;
  if (!std::isfinite(exact.output_norm + exact.logit_norm)) require_finite(chunk, range, id);
  for (std::size_t m = 0; m < of_methods.size(); ++m) {
    found.methods[m].add(of_methods[m]);
    found.sequences[m].back() = of_methods[m].all;
    found.sequences[m].back().kl = {};
  }
  found.queries += std::ssize(sampled_positions(range.size(), stride));
}

/// Throws DataError unless the rows of a layer have the channels that methods take, and, for the set under test, the KV
/// heads that its model has in every layer.
void require_shape(std::span<const KvMethod> methods, const ModelIdentity& model, int id, LayerStream& stream) {
  const KvLayer& layer = methods.front().layer(id);
  const int value_dim = layer.value_dim > 0 ? layer.value_dim : layer.head_dim;
  QkvChunk chunk;
  stream.rewind();
  if (!stream.skip(chunk)) return;
  const int heads = chunk.view.k.num_heads, expected = model.num_key_value_heads;
  const bool of_set = std::ranges::count(methods, MethodKind::kThis, &KvMethod::kind) > 0;
  if (of_set && expected > 0 && heads != expected) {
    throw DataError(fmt::format("layer {} has {} KV heads, the data's model {}", id, heads, expected), chunk.where,
                    "choose layers of one shape with --layers");
  }
  if (chunk.view.k.head_dim == layer.head_dim && chunk.view.v.head_dim == value_dim) return;
  throw DataError(fmt::format("keys and values have {} and {} channels, in the set {} and {}", chunk.view.k.head_dim,
                              chunk.view.v.head_dim, layer.head_dim, value_dim),
                  chunk.where, "give data of the set's model, or choose layers with --layers");
}

LayerMeasurements measure_layer(const MeasurePlan& plan, const ModelIdentity& model, Backend& backend, int id,
                                LayerStream& stream) {
  LayerMeasurements found;
  found.methods.resize(plan.methods.size());
  found.sequences.resize(plan.methods.size());
  const std::vector<std::int64_t> lengths = sequence_lengths(stream);
  found.tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const std::int64_t stride = query_stride(found.tokens, plan.max_queries);
  if (!plan.methods.empty()) {
    found.keys = keys_of_attention(lengths, stride, plan.windows);
    require_quantised(found.keys, "attention", "layer " + std::to_string(id), plan.windows);
    require_shape(plan.methods, model, id, stream);
  }
  found.moments = plan.take_moments(id, stream, found.tokens);
  if (plan.methods.empty()) return found;
  QkvChunk chunk;
  stream.rewind();
  while (stream.next(chunk)) {
    for (const SequenceRange& range : chunk.sequences) {
      throw_if_interrupted();
      take_attention(plan, backend, id, chunk, range, stride, found);
    }
  }
  return found;
}

/// Of heads, only the figures are kept: a histogram each would add up.
void add_layer(LayerMeasurements layer, int id, Measurements& found) {
  found.layers.push_back(id);
  found.tokens = layer.tokens;
  found.queries = layer.queries;
  found.keys += layer.keys;
  found.moments.add(std::move(layer.moments));
  for (std::size_t m = 0; m < layer.methods.size(); ++m) {
    MethodMeasurements& method = found.methods[m];
    method.layers.push_back(layer.methods[m].all);
    method.heads.emplace_back();
    for (const AttentionSums& head : layer.methods[m].heads) method.heads.back().push_back(head.metrics());
    method.sequences.resize(std::max(method.sequences.size(), layer.sequences[m].size()));
    for (std::size_t s = 0; s < layer.sequences[m].size(); ++s) method.sequences[s].add(layer.sequences[m][s]);
  }
}

}  // namespace

Measurements measure_source(QkvSource& source, const MeasurePlan& plan, Backend& backend, Status& status) {
  std::vector<int> ids;
  for (const int id : source.layer_ids()) {
    if (plan.layers.empty() || std::ranges::find(plan.layers, id) != plan.layers.end()) ids.push_back(id);
  }
  const auto total = static_cast<std::int64_t>(ids.size());
  std::atomic<std::int64_t> done = 0;
  std::vector<LayerMeasurements> layers(ids.size());
  status.progress("attention metrics, layer", done, total);
  // Twice as many as a backend reads at once: other people's methods keep the host busy, and parts of them one core. On
  // the CPU the model, whose sequences seldom are a multiple of its threads, takes the next layer meanwhile.
  for_each_layer(source, ids, 2 * backend.work_shape().concurrent_layers,
                 [&](std::size_t i, const std::unique_ptr<LayerStream>& stream) {
                   layers[i] = measure_layer(plan, source.model(), backend, ids[i], *stream);
                   status.progress("attention metrics, layer", ++done, total);
                 });
  Measurements found;
  found.methods.resize(plan.methods.size());
  for (std::size_t i = 0; i < ids.size(); ++i) add_layer(std::move(layers[i]), ids[i], found);
  return found;
}

}  // namespace oscar::verify
