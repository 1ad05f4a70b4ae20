// SPDX-License-Identifier: MIT
// What a KV method does to a model: the decoder runs with the method's attention in every layer, over whole sequences,
// against the same run with exact attention. Figures of predictions: model_sums.hpp.
//   retrieval = share of needles whose answer is the argmax at every one of its tokens but the last (the full stop),
//   teacher-forced
//   quotations: as needles, but every token counts, and the share of tokens that are right is the figure
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.hpp"
#include "codec/kv_method.hpp"
#include "kernels/backend.hpp"
#include "model/run/runner.hpp"
#include "verify/report/report.hpp"

namespace oscar::verify {

struct ModelData {
  std::vector<TokenSequence> texts;    // at least two tokens each
  std::vector<TokenSequence> needles;  // prompt and answer
  std::vector<int> answer_lengths;     // one per needle: tokens of the answer, full stop included
  std::vector<TokenSequence> quotes;   // a text, and at the end a passage of it once more
  std::vector<int> quote_lengths;      // one per quotation: tokens at the end that the model is to repeat
};

/// Throws DataError if sequences or answers are too short or their numbers differ.
void check_model_data(const ModelData& data);

/// One entry per method, in order. Methods that quantise nothing get the figures of exact attention.
[[nodiscard]] std::vector<ModelMetrics> measure_model(ModelRunner& runner, const ModelData& data,
                                                      const std::vector<KvMethod>& methods, Precision precision,
                                                      Backend& backend, Status& status);

}  // namespace oscar::verify
