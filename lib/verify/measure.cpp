// SPDX-License-Identifier: MIT
#include "verify/measure.hpp"

#include <algorithm>

#include "verify/data_covariance.hpp"

namespace oscar::verify {
namespace {

bool wanted(const MeasurePlan& plan, int layer) {
  return plan.layers.empty() || std::find(plan.layers.begin(), plan.layers.end(), layer) != plan.layers.end();
}

std::int64_t count_tokens(LayerStream& stream) {
  std::int64_t tokens = 0;
  QkvChunk chunk;
  stream.rewind();
  while (stream.next(chunk)) tokens += chunk.view.q.num_tokens;
  return tokens;
}

class Measurer {
 public:
  Measurer(const MeasurePlan& plan, Backend& backend) : plan_(plan), backend_(backend) {
    found_.methods.resize(plan.methods->size());
  }

  void layer(int id, LayerStream& stream) {
    found_.tokens = count_tokens(stream);
    take_covariances(id, stream);
    found_.layers.push_back(id);
    if (plan_.methods->empty()) return;
    const std::int64_t limit = plan_.max_queries > 0 ? plan_.max_queries : found_.tokens;
    const std::int64_t stride =
        std::max<std::int64_t>(1, (found_.tokens + limit - 1) / std::max<std::int64_t>(limit, 1));
    sums_.assign(plan_.methods->size(), {});
    found_.queries = 0;
    sequence_ = 0;
    QkvChunk chunk;
    stream.rewind();
    while (stream.next(chunk)) {
      for (const SequenceRange& range : chunk.sequences) {
        throw_if_interrupted();
        if (range.size() > 0) take_attention(id, chunk.view.tokens(range), stride);
        ++sequence_;
      }
    }
    for (std::size_t m = 0; m < sums_.size(); ++m) finish_layer(sums_[m], found_.methods[m]);
  }

  Measurements take() { return std::move(found_); }

 private:
  void take_covariances(int id, LayerStream& stream) {
    for (const SubjectSide& side : plan_.subject->sides) {
      if (side.target.empty()) continue;
      auto covariance = covariance_of(side.objective, stream, backend_);
      if (covariance)
        found_.covariances.push_back({id, side.target, std::move(*covariance), plan_.same_tokens, found_.tokens});
    }
  }

  void take_attention(int id, const QkvView& sequence, std::int64_t stride) {
    for (std::size_t m = 0; m < plan_.methods->size(); ++m) {
      const KvMethod& method = (*plan_.methods)[m];
      LayerSums sums = measure_attention(sequence, method, id, stride, plan_.precision, backend_);
      sums_[m].add(sums);
      sums.all.kl = {};
      auto& sequences = found_.methods[m].sequences;
      sequences.resize(std::max(sequences.size(), sequence_ + 1));
      sequences[sequence_].add(sums.all);
    }
    found_.queries += static_cast<std::int64_t>(sampled_positions(sequence.q.num_tokens, stride).size());
  }

  /// Of heads, only the figures are kept: a histogram each would add up.
  static void finish_layer(const LayerSums& sums, MethodMeasurements& found) {
    found.layers.push_back(sums.all);
    found.heads.emplace_back();
    for (const AttentionSums& head : sums.heads) found.heads.back().push_back(head.metrics());
  }

  const MeasurePlan& plan_;
  Backend& backend_;
  std::vector<LayerSums> sums_;  // of the layer at hand, by method
  std::size_t sequence_ = 0;     // of the layer
  Measurements found_;
};

}  // namespace

Measurements measure_source(QkvSource& source, const MeasurePlan& plan, Backend& backend, Status& status) {
  Measurer measurer(plan, backend);
  const auto total = static_cast<std::int64_t>(source.layer_ids().size());
  std::int64_t done = 0;
  status.progress("attention metrics, layer", done, total);
  for (const int id : source.layer_ids()) {
    if (wanted(plan, id)) measurer.layer(id, *source.open(id));
    status.progress("attention metrics, layer", ++done, total);
  }
  return measurer.take();
}

}  // namespace oscar::verify
