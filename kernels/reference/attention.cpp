// SPDX-License-Identifier: MIT
#include "kernels/reference/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "base/errors.hpp"
#include "kernels/reference/row_codec.hpp"
#include "tensor/dtype.hpp"

namespace oscar::reference {
namespace {

/// Returns row j as a query at `position` reads it.
std::span<const float> row_for(const CacheRows& rows, std::int64_t j, std::int64_t position, Windows windows) {
  const bool in_window = j < windows.sink || j > position - windows.recent;
  const auto dim = static_cast<std::size_t>(rows.dim);
  return std::span(in_window ? rows.stored : rows.history).subspan(static_cast<std::size_t>(j) * dim, dim);
}

/// Returns the shares of a softmax over what the rule makes of the scores of keys 0 to `position`.
std::vector<double> softmax(std::vector<double> scores, std::int64_t position, int head, const ScoreRule* rule) {
  const bool has_sink = rule != nullptr && !rule->sinks.empty();
  const double sink = has_sink ? double{rule->sinks[static_cast<std::size_t>(head)]} : -INFINITY;
  const std::int64_t first_seen =
      rule != nullptr && rule->reach > 0 ? std::max<std::int64_t>(position - rule->reach + 1, 0) : 0;
  double highest = sink;
  for (std::int64_t j = 0; j <= position; ++j) {
    double& score = scores[static_cast<std::size_t>(j)];
    if (rule != nullptr) score = rule->capped(score);
    if (j < first_seen) score = -INFINITY;
    highest = std::max(highest, score);
  }
  double sum = std::exp(sink - highest);
  for (double& score : scores) sum += score = std::exp(score - highest);
  for (double& share : scores) share /= sum;
  return scores;
}

}  // namespace

CacheRows packed_cache_rows(std::vector<float> stored, int dim, std::span<const std::uint8_t> packed,
                            const HistoryCodec& codec, int kv_head, Precision precision) {
  const auto size = static_cast<std::size_t>(dim);
  const std::size_t row_bytes = packed_row_bytes(codec, kv_head, size);
  OSCAR_CHECK(packed.size() / row_bytes * size == stored.size() && packed.size() % row_bytes == 0);
  CacheRows rows{dim, std::move(stored), {}};
  rows.history.resize(rows.stored.size());
  for (std::size_t t = 0; t < packed.size() / row_bytes; ++t) {
    const std::span<float> row = std::span(rows.history).subspan(t * size, size);
    decode_packed_row(codec, kv_head, packed.subspan(t * row_bytes, row_bytes), row);
    for (float& value : row) value = static_cast<float>(rounded(double{value}, precision));
  }
  return rows;
}

Attention attend(const Query& query, const CacheRows& keys, const CacheRows& values, Windows windows,
                 const ScoreRule* rule) {
  const auto dim = static_cast<std::size_t>(keys.dim), value_dim = static_cast<std::size_t>(values.dim);
  OSCAR_CHECK(query.row.size() == dim && keys.stored.size() / dim == values.stored.size() / value_dim);
  OSCAR_CHECK(query.position >= 0 && static_cast<std::size_t>(query.position) < keys.stored.size() / dim);
  Attention found;
  for (std::int64_t j = 0; j <= query.position; ++j) {
    const std::span<const float> key = row_for(keys, j, query.position, windows);
    double product = 0;
    for (std::size_t c = 0; c < dim; ++c) product += query.row[c] * double{key[c]};
    found.scores.push_back(product / std::sqrt(static_cast<double>(dim)));
  }
  found.probabilities = softmax(found.scores, query.position, query.head, rule);
  found.output.resize(value_dim);
  for (std::int64_t j = 0; j <= query.position; ++j) {
    const std::span<const float> value = row_for(values, j, query.position, windows);
    const double share = found.probabilities[static_cast<std::size_t>(j)];
    for (std::size_t c = 0; c < value_dim; ++c) found.output[c] += share * double{value[c]};
  }
  return found;
}

Attention attend_exactly(const Query& query, const CacheRows& keys, const CacheRows& values, const ScoreRule* rule) {
  return attend(query, keys, values, {std::numeric_limits<int>::max(), 0}, rule);
}

namespace {

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

std::vector<double> difference(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = a[i] - b[i];
  return result;
}

/// Returns the sum of the squared distances from the mean.
double spread(const std::vector<double>& values) {
  const double centre = mean(values);
  double sum = 0;
  for (const double value : values) sum += (value - centre) * (value - centre);
  return sum;
}

/// Returns sum_j p_j (log p_j - log p^_j); probabilities below 1e-300 count as 1e-300 under the logarithm.
double divergence(const std::vector<double>& p, const std::vector<double>& p_hat) {
  double sum = 0;
  for (std::size_t j = 0; j < p.size(); ++j) {
    sum += p[j] * (std::log(std::max(p[j], 1e-300)) - std::log(std::max(p_hat[j], 1e-300)));
  }
  return sum;
}

/// Needles are keys of the history that get at least kNeedleShare of the exact attention.
void add_needles(const std::vector<double>& p, const std::vector<double>& p_hat, Windows windows,
                 AttentionErrors& errors) {
  const auto position = static_cast<std::int64_t>(p.size()) - 1;
  for (std::int64_t j = windows.sink; j <= position - windows.recent; ++j) {
    const auto at = static_cast<std::size_t>(j);
    if (p[at] < kNeedleShare) continue;
    errors.needle_mass += p[at];
    errors.needle_kept += std::min(p_hat[at], p[at]);  // not a number where the first is none
  }
}

}  // namespace

void add_errors(const Attention& exact, const Attention& mixed, Windows windows, AttentionErrors& errors) {
  OSCAR_CHECK(exact.scores.size() == mixed.scores.size() && exact.output.size() == mixed.output.size());
  const double kl = divergence(exact.probabilities, mixed.probabilities);
  errors.softmax_kl += kl;
  errors.query_kl.push_back(kl);
  errors.logit_error += spread(difference(mixed.scores, exact.scores));
  errors.logit_norm += spread(exact.scores);
  add_needles(exact.probabilities, mixed.probabilities, windows, errors);
  const std::vector<double> error = difference(exact.output, mixed.output);
  const double norm = dot(exact.output, exact.output), mixed_norm = dot(mixed.output, mixed.output);
  errors.output_error += dot(error, error);
  errors.output_norm += norm;
  if (norm > 0 && mixed_norm > 0)
    errors.output_cosine += dot(exact.output, mixed.output) / std::sqrt(norm * mixed_norm);
  ++errors.queries;
}

namespace {

template <class T>
std::vector<double> all_rounded(const std::vector<T>& values, Precision precision) {
  std::vector<double> result;
  for (const T value : values) result.push_back(reference::rounded(double{value}, precision));
  return result;
}

}  // namespace

double rounded(double value, Precision precision) {
  return precision == Precision::kServing ? double{round_to_bf16(static_cast<float>(value))} : value;
}

void rotate(HeadsView x, const MatrixStack& rotated_from_native, Precision precision, std::span<float> rows) {
  OSCAR_CHECK(x.head_dim == rotated_from_native.dim && x.num_heads % rotated_from_native.count == 0);
  const std::vector<double> native = all_rounded(x.floats(), precision);
  const auto dim = static_cast<std::size_t>(x.head_dim), heads = static_cast<std::size_t>(x.num_heads);
  OSCAR_CHECK(rows.size() == native.size());
  MatrixStack matrices = rotated_from_native;
  matrices.data = all_rounded(matrices.data, precision);
  const int sharing = x.num_heads / matrices.count;
  for (std::size_t row = 0; row < native.size() / dim; ++row) {
    const std::span<const double> matrix = matrices[static_cast<int>(row % heads) / sharing];
    for (std::size_t c = 0; c < dim; ++c) {
      double sum = 0;
      for (std::size_t i = 0; i < dim; ++i) sum += native[row * dim + i] * matrix[i * dim + c];
      rows[row * dim + c] = static_cast<float>(rounded(double{static_cast<float>(sum)}, precision));
    }
  }
}

std::vector<float> stored_rows(HeadsView x, const MatrixStack* rotated_from_native, std::span<const double> mean,
                               Precision precision) {
  std::vector<float> rows = x.floats();
  if (rotated_from_native == nullptr) {
    for (float& value : rows) value = static_cast<float>(rounded(double{value}, precision));
    return rows;
  }
  for (std::size_t i = 0; i < rows.size() && !mean.empty(); ++i) rows[i] -= static_cast<float>(mean[i % mean.size()]);
  std::vector<float> turned(rows.size());
  rotate(heads_view(rows, x.num_tokens, x.num_heads, x.head_dim), *rotated_from_native, precision, turned);
  return turned;
}

}  // namespace oscar::reference
