// SPDX-License-Identifier: MIT
#include "verify/attention_metrics.hpp"

#include <algorithm>
#include <cmath>

namespace oscar::verify {
namespace {

double ratio(double numerator, double denominator) { return denominator > 0 ? numerator / denominator : 0; }

std::optional<double> decibels(double signal, double noise) {
  if (signal <= 0 || noise <= 0) return std::nullopt;
  return 10 * std::log10(signal / noise);
}

AttentionErrors over_heads(const std::vector<AttentionErrors>& heads) {
  AttentionErrors sum;
  for (const AttentionErrors& head : heads) sum.add(head);
  return sum;
}

/// The rows of q at `positions`, as (positions, heads, dim) floats.
std::vector<float> gather(HeadsView q, std::span<const std::int64_t> positions) {
  const auto dim = static_cast<std::size_t>(q.head_dim);
  std::vector<float> rows(positions.size() * static_cast<std::size_t>(q.num_heads) * dim);
  auto out = std::span(rows);
  for (const std::int64_t position : positions) {
    for (int head = 0; head < q.num_heads; ++head) {
      q.row(position, head, out.first(dim));
      out = out.subspan(dim);
    }
  }
  return rows;
}

}  // namespace

void AttentionSums::add(const AttentionSums& other) {
  both.add(other.both);
  output_error_k_only += other.output_error_k_only;
  output_error_v_only += other.output_error_v_only;
  rows.add(other.rows);
  kl.add(other.kl);
}

AttentionMetrics AttentionSums::metrics() const {
  return {.k_sqnr_db = decibels(rows.key_signal, rows.key_noise),
          .v_sqnr_db = decibels(rows.value_signal, rows.value_noise),
          .logit_nmse = ratio(both.logit_error, both.logit_norm),
          .softmax_kl = ratio(both.softmax_kl, static_cast<double>(both.queries)),
          .softmax_kl_p99 = kl.quantile(0.99),
          .output_rel_error = ratio(both.output_error, both.output_norm),
          .output_rel_error_k_only = ratio(output_error_k_only, both.output_norm),
          .output_rel_error_v_only = ratio(output_error_v_only, both.output_norm)};
}

std::vector<std::int64_t> sampled_positions(std::int64_t num_tokens, std::int64_t stride) {
  std::vector<std::int64_t> positions;
  for (std::int64_t p = num_tokens - 1; p >= 0; p -= stride) positions.push_back(p);
  std::reverse(positions.begin(), positions.end());
  return positions;
}

AttentionSums measure_attention(const QkvView& sequence, const KvMethod& method, int layer_id, std::int64_t stride,
                                Precision precision, Backend& backend) {
  const std::vector<std::int64_t> positions = sampled_positions(sequence.q.num_tokens, stride);
  const std::vector<float> q = gather(sequence.q, positions);
  const QkvView exact{
      heads_view(q, static_cast<std::int64_t>(positions.size()), sequence.q.num_heads, sequence.q.head_dim), sequence.k,
      sequence.v};
  const HeldSequence held = hold(method, layer_id, exact, positions, precision, backend);
  const HistoryCodecs codecs = method.layer(layer_id).codecs();
  std::vector<HistoryCodecs> candidates{codecs};
  if (codecs != HistoryCodecs{}) candidates.insert(candidates.end(), {{codecs.key, {}}, {{}, codecs.value}});
  const auto errors = held.rows->compare(candidates, method.windows);
  AttentionSums sums;
  sums.both = over_heads(errors.front());
  sums.kl.add(sums.both.query_kl);
  sums.both.query_kl.clear();
  sums.output_error_k_only = errors.size() > 1 ? over_heads(errors[1]).output_error : sums.both.output_error;
  sums.output_error_v_only = errors.size() > 1 ? over_heads(errors[2]).output_error : sums.both.output_error;
  sums.rows = held.rows->row_errors(codecs, method.windows);
  return sums;
}

}  // namespace oscar::verify
