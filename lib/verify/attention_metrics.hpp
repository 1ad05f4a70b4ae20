// SPDX-License-Identifier: MIT
// What a KV method does to attention on captured Q/K/V: sums per sequence that add up to layers and to the whole.
//   k_sqnr_db = 10 log10(sum |x|^2 / sum |x - x^|^2) over keys outside the windows of the last query, in rotated
//   coordinates the other metrics: kernels/README.md
// K-only (V-only): only keys (values) of the history are quantised.
#pragma once

#include <cstdint>
#include <vector>

#include "codec/kv_method.hpp"
#include "kernels/backend.hpp"
#include "verify/histogram.hpp"
#include "verify/report.hpp"

namespace oscar::verify {

struct AttentionSums {
  AttentionErrors both;  // over heads; query_kl is kept in `kl` instead
  double output_error_k_only = 0, output_error_v_only = 0;
  RowErrors rows;
  LogHistogram kl;

  void add(const AttentionSums& other);
  [[nodiscard]] AttentionMetrics metrics() const;
};

/// Positions of the queries to look at: the last one and every `stride`-th before it, ascending.
[[nodiscard]] std::vector<std::int64_t> sampled_positions(std::int64_t num_tokens, std::int64_t stride);

/// One sequence of one layer under one method, at every stride-th query.
[[nodiscard]] AttentionSums measure_attention(const QkvView& sequence, const KvMethod& method, int layer_id,
                                              std::int64_t stride, Precision precision, Backend& backend);

}  // namespace oscar::verify
