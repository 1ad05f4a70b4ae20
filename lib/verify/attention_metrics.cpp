// SPDX-License-Identifier: MIT
#include "verify/attention_metrics.hpp"

#include <algorithm>
#include <cmath>

#include "codec/mixed_sequence.hpp"

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

/// Signal and noise of the tokens that end up quantised, decoded rows against exact rows in the same coordinates.
void add_row_errors(HeadsView native, const MatrixStack* rotation, HeadsView decoded, const Windows& windows,
                    Backend& backend, double& signal, double& noise) {
  const std::int64_t begin = windows.sink;
  const std::int64_t end = native.num_tokens - windows.recent;
  if (begin >= end) return;
  const HeadsView rows = native.tokens(begin, end);
  std::vector<float> exact;
  std::vector<std::int64_t> all(static_cast<std::size_t>(end - begin));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  if (rotation == nullptr) {
    exact = gather(rows, all);
  } else {
    exact.resize(all.size() * static_cast<std::size_t>(native.num_heads * native.head_dim));
    backend.rotate(rows, *rotation, Precision::kExact, exact);
  }
  const std::vector<float> approximate = gather(decoded.tokens(begin, end), all);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double e = double{exact[i]} - approximate[i];
    signal += double{exact[i]} * exact[i];
    noise += e * e;
  }
}

}  // namespace

void AttentionSums::add(const AttentionSums& other) {
  both.add(other.both);
  output_error_k_only += other.output_error_k_only;
  output_error_v_only += other.output_error_v_only;
  k_signal += other.k_signal, k_noise += other.k_noise;
  v_signal += other.v_signal, v_noise += other.v_noise;
  kl.add(other.kl);
}

AttentionMetrics AttentionSums::metrics() const {
  return {.k_sqnr_db = decibels(k_signal, k_noise),
          .v_sqnr_db = decibels(v_signal, v_noise),
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
  const KvLayer& layer = method.layer(layer_id);
  const std::vector<std::int64_t> positions = sampled_positions(sequence.q.num_tokens, stride);
  const std::vector<float> q = gather(sequence.q, positions);
  const QkvView exact{
      heads_view(q, static_cast<std::int64_t>(positions.size()), sequence.q.num_heads, sequence.q.head_dim), sequence.k,
      sequence.v};
  const MixedSequence mixed = make_mixed_sequence(exact, layer, precision, backend);
  const auto errors = [&](QuantizedSides sides) {
    return over_heads(backend.compare_attention(exact, mixed.view(method.windows, positions, sides)));
  };
  AttentionSums sums;
  sums.both = errors(QuantizedSides::kBoth);
  sums.kl.add(sums.both.query_kl);
  sums.both.query_kl.clear();
  const bool quantized = layer.key.quantized || layer.value.quantized;
  sums.output_error_k_only = quantized ? errors(QuantizedSides::kKeys).output_error : sums.both.output_error;
  sums.output_error_v_only = quantized ? errors(QuantizedSides::kValues).output_error : sums.both.output_error;
  add_row_errors(sequence.k, layer.key.rotation.get(), mixed.history_k(), method.windows, backend, sums.k_signal,
                 sums.k_noise);
  add_row_errors(sequence.v, layer.value.rotation.get(), mixed.history_v(), method.windows, backend, sums.v_signal,
                 sums.v_noise);
  return sums;
}

}  // namespace oscar::verify
