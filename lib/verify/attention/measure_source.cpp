// SPDX-License-Identifier: MIT
#include "verify/attention/measure_source.hpp"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "base/check.hpp"
#include "dump/source.hpp"

namespace oscar::verify {
namespace {

bool wanted(const MeasurePlan& plan, int layer) {
  return plan.layers.empty() || std::find(plan.layers.begin(), plan.layers.end(), layer) != plan.layers.end();
}

std::vector<std::int64_t> lengths_of(LayerStream& stream) {
  std::vector<std::int64_t> lengths;
  QkvChunk chunk;
  stream.rewind();
  while (stream.skip(chunk)) {
    for (const SequenceRange& range : chunk.sequences) lengths.push_back(range.size());
  }
  return lengths;
}

/// What one layer tells.
struct LayerMeasurements {
  DataMoments moments;
  std::vector<LayerSums> methods;
  std::vector<std::vector<AttentionSums>> sequences;  // [method][sequence], without histograms
  std::int64_t tokens = 0, queries = 0;
  KeysRead keys;
};

class LayerMeasurer {
 public:
  LayerMeasurer(const MeasurePlan& plan, Backend& backend, int id) : plan_(plan), backend_(backend), id_(id) {
    found_.methods.resize(plan.methods->size());
    found_.sequences.resize(plan.methods->size());
  }

  LayerMeasurements measure(LayerStream& stream) {
    const std::vector<std::int64_t> lengths = lengths_of(stream);
    found_.tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    const std::int64_t stride = query_stride(found_.tokens, plan_.max_queries);
    if (!plan_.methods->empty()) {
      found_.keys = keys_of_attention(lengths, stride, plan_.windows);
      require_quantised(found_.keys, "attention", "layer " + std::to_string(id_), plan_.windows);
    }
    if (plan_.subject != nullptr) {
      found_.moments = plan_.subject->take(id_, stream, plan_.same_tokens, found_.tokens, backend_);
    }
    if (plan_.methods->empty()) return std::move(found_);
    QkvChunk chunk;
    stream.rewind();
    while (stream.next(chunk)) {
      for (const SequenceRange& range : chunk.sequences) {
        throw_if_interrupted();
        take_attention(chunk.view.tokens(range), stride);
      }
    }
    return std::move(found_);
  }

 private:
  void take_attention(const QkvView& sequence, std::int64_t stride) {
    for (auto& sums : found_.sequences) sums.emplace_back();
    if (sequence.q.num_tokens == 0) return;
    const auto of_methods = measure_attention(sequence, *plan_.methods, id_, stride, plan_.precision, backend_);
    for (std::size_t m = 0; m < of_methods.size(); ++m) {
      found_.methods[m].add(of_methods[m]);
      found_.sequences[m].back() = of_methods[m].all;
      found_.sequences[m].back().kl = {};
    }
    found_.queries += static_cast<std::int64_t>(sampled_positions(sequence.q.num_tokens, stride).size());
  }

  const MeasurePlan& plan_;
  Backend& backend_;
  const int id_;
  LayerMeasurements found_;
};

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
    if (wanted(plan, id)) ids.push_back(id);
  }
  const auto total = static_cast<std::int64_t>(ids.size());
  std::atomic<std::int64_t> done = 0;
  std::vector<LayerMeasurements> layers(ids.size());
  status.progress("attention metrics, layer", done, total);
  // Twice as many as a backend reads at once: other people's methods keep the host busy, and parts of them one core. On
  // the CPU the model, whose sequences seldom are a multiple of its threads, takes the next layer meanwhile.
  for_each_layer(source, ids, 2 * backend.work_shape().concurrent_layers,
                 [&](std::size_t i, const std::unique_ptr<LayerStream>& stream) {
                   layers[i] = LayerMeasurer(plan, backend, ids[i]).measure(*stream);
                   status.progress("attention metrics, layer", ++done, total);
                 });
  Measurements found;
  found.methods.resize(plan.methods->size());
  for (std::size_t i = 0; i < ids.size(); ++i) add_layer(std::move(layers[i]), ids[i], found);
  return found;
}

CodedDamage measure_attention_damage(QkvSource& source, const CodedSet& set, Backend& backend) {
  OSCAR_CHECK(set.layers.size() == 1);
  constexpr std::int64_t kQueries = 512;  // of the layer
  const std::vector<KvMethod> methods{method_of_coded_set(set, set.windows)};
  Status silent;  // the fit tells of layers
  const Measurements found = measure_source(
      source, {nullptr, &methods, {set.layers.front().layer_id}, kQueries, Precision::kServing, false, set.windows},
      backend, silent);
  const AttentionMetrics metrics = found.methods.front().layers.front().metrics();
  return {metrics.output_rel_error_k_only, metrics.output_rel_error_v_only};
}

}  // namespace oscar::verify
