// SPDX-License-Identifier: MIT
#include "kernels/reference/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.hpp"
#include "kernels/reference/packed_row.hpp"
#include "kernels/reference/stored_rows.hpp"

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
  const double cap = rule != nullptr ? rule->soft_cap : 0;
  const bool has_sink = rule != nullptr && !rule->sinks.empty();
  const double sink = has_sink ? double{rule->sinks[static_cast<std::size_t>(head)]} : -INFINITY;
  const std::int64_t first_seen =
      rule != nullptr && rule->reach > 0 ? std::max<std::int64_t>(position - rule->reach + 1, 0) : 0;
  double highest = sink;
  for (std::int64_t j = 0; j <= position; ++j) {
    double& score = scores[static_cast<std::size_t>(j)];
    if (cap > 0) score = cap * std::tanh(score / cap);
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

Attention attend_exactly(const Query& query, const CacheRows& keys, const CacheRows& values) {
  return attend(query, keys, values, {std::numeric_limits<int>::max(), 0});
}

}  // namespace oscar::reference
