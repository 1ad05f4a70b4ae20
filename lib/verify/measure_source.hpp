// SPDX-License-Identifier: MIT
// Goes once through the layers of a dump, or of a running model, and takes everything that can be learned there: second
// moments for the decomposition check, and the attention metrics of every method.
#pragma once

#include <vector>

#include "measure/attention/attention_metrics.hpp"
#include "verify/structure/subject.hpp"
#include "verify/verdict/measured_text.hpp"
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

struct MeasurePlan {
  const Subject* subject = nullptr;                // null: no moments are taken
  const std::vector<KvMethod>* methods = nullptr;  // empty: only moments
  std::vector<int> layers;                         // empty: all of the source
  std::int64_t max_queries = 0;
  Precision precision = Precision::kServing;
  bool same_tokens = false;
  Windows windows;  // of the set under test
};

/// Throws DataError for layers of which next to nothing is quantised (quantised.hpp).
[[nodiscard]] Measurements measure_source(QkvSource& source, const MeasurePlan& plan, Backend& backend, Status& status);

}  // namespace oscar::verify
