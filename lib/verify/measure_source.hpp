// SPDX-License-Identifier: MIT
// Goes once through the layers of a dump, or of a running model, and takes everything that can be learned there: second
// moments for the decomposition check, and the attention metrics of every method.
#pragma once

#include <functional>
#include <vector>

#include "measure/attention/attention_metrics.hpp"
#include "measure/keys_read.hpp"
#include "verify/structure/subject.hpp"
#include "verify/verify.hpp"

namespace oscar::verify {

/// One method, layer by layer.
struct MethodMeasurements {
  std::vector<AttentionSums> layers;
  std::vector<std::vector<AttentionMetrics>> heads;  // [layer][query head]
  std::vector<AttentionSums> sequences;              // over layers; without histograms
};

struct Measurements {
  DataMoments moments;
  std::vector<int> layers;
  std::vector<MethodMeasurements> methods;
  std::int64_t tokens = 0, queries = 0;  // of one layer
  KeysRead keys;                         // of all layers
};

/// What a layer of so many tokens tells of the set under test. Leaves the stream anywhere.
using TakeMoments = std::function<DataMoments(int layer_id, LayerStream& stream, std::int64_t tokens)>;

struct MeasurePlan {
  const std::vector<KvMethod>& methods;  // empty: only moments
  TakeMoments take_moments;
  std::vector<int> layers;  // empty: all of the source
  std::int64_t max_queries = 0;
  Precision precision = Precision::kServing;
  Windows windows;  // of the set under test
};

/// Throws DataError for layers of which next to nothing is quantised (measure/keys_read.hpp).
[[nodiscard]] Measurements measure_source(QkvSource& source, const MeasurePlan& plan, Backend& backend, Status& status);

}  // namespace oscar::verify
