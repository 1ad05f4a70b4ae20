// SPDX-License-Identifier: MIT
#include "kernels/reference/moments.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "kernels/arguments.hpp"
#include "kernels/reference/attention.hpp"

namespace oscar::reference {

namespace {

std::vector<double> row_of(const HeadsView& x, std::int64_t token, int head) {
  std::vector<double> row(static_cast<std::size_t>(x.head_dim));
  x.head_rows(token, 1, head, row.data());
  return row;
}

/// gram += weight x^T x
void add_outer(double weight, const std::vector<double>& x, std::span<double> gram) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t j = 0; j < x.size(); ++j) gram[i * x.size() + j] += weight * x[i] * x[j];
  }
}

/// Returns x M.
std::vector<double> product(const std::vector<double>& x, std::span<const double> matrix) {
  std::vector<double> result(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t c = 0; c < x.size(); ++c) result[c] += x[i] * matrix[i * x.size() + c];
  }
  return result;
}

CacheRows sequence_rows(const HeadsView& x, SequenceRange sequence, int head) {
  CacheRows rows{x.head_dim, {}, {}};
  std::vector<float> row(static_cast<std::size_t>(x.head_dim));
  for (std::int64_t t = sequence.begin; t < sequence.end; ++t) {
    x.row(t, head, row);
    rows.stored.insert(rows.stored.end(), row.begin(), row.end());
  }
  return rows;
}

/// Calls visit(sequence, query head, KV head, query, its attention) for every query of every sequence. The query's
/// position counts from the start of its sequence.
void for_each_query(const QkvView& qkv, std::span<const SequenceRange> sequences,
                    const std::function<void(SequenceRange, int kv_head, const Query&, const Attention&)>& visit) {
  for (const SequenceRange& sequence : sequences) {
    for (int head = 0; head < qkv.q.num_heads; ++head) {
      const int kv_head = head / (qkv.q.num_heads / qkv.k.num_heads);
      const CacheRows keys = sequence_rows(qkv.k, sequence, kv_head), values = sequence_rows(qkv.v, sequence, kv_head);
      for (std::int64_t position = 0; position < sequence.size(); ++position) {
        const Query query{row_of(qkv.q, sequence.begin + position, head), position, head};
        visit(sequence, kv_head, query, attend_exactly(query, keys, values));
      }
    }
  }
}

}  // namespace

void accumulate_grams(HeadsView x, MatrixStack& grams) {
  OSCAR_CHECK(x.head_dim == grams.dim && x.num_heads % grams.count == 0);
  for (std::int64_t t = 0; t < x.num_tokens; ++t) {
    for (int head = 0; head < x.num_heads; ++head) {
      add_outer(1, row_of(x, t, head), grams[head / (x.num_heads / grams.count)]);
    }
  }
}

void accumulate_weighted_grams(HeadsView k, const MatrixStack& forms, HeadsView v, MatrixStack& grams,
                               std::span<double> weights) {
  OSCAR_CHECK(k.num_heads == v.num_heads && k.num_tokens == v.num_tokens && k.num_heads == grams.count);
  for (std::int64_t t = 0; t < k.num_tokens; ++t) {
    for (int head = 0; head < k.num_heads; ++head) {
      const std::vector<double> key = row_of(k, t, head), formed = product(key, forms[head]);
      double weight = 0;
      for (std::size_t c = 0; c < key.size(); ++c) weight += formed[c] * key[c];
      weights[static_cast<std::size_t>(head)] += weight;
      add_outer(std::max(weight, 0.0), row_of(v, t, head), grams[head]);
    }
  }
}

void accumulate_fisher_sums(const QkvView& qkv, std::span<const SequenceRange> sequences, Windows windows,
                            FisherSums& sums) {
  const auto dim = static_cast<std::size_t>(qkv.k.head_dim);
  for_each_query(qkv, sequences, [&](SequenceRange sequence, int kv, const Query& query, const Attention& found) {
    double felt_by_query = 0;
    for (std::int64_t j = windows.sink; j <= query.position - windows.recent; ++j) {
      const double p = found.probabilities[static_cast<std::size_t>(j)], felt = p * (1 - p);
      felt_by_query += felt;
      const std::vector<double> key = row_of(qkv.k, sequence.begin + j, kv);
      add_outer(felt, key, sums.key[kv]);
      for (std::size_t c = 0; c < dim; ++c) sums.key_sum[static_cast<std::size_t>(kv) * dim + c] += felt * key[c];
      sums.weight[static_cast<std::size_t>(kv)] += felt;
      if (sums.base_key.count > 0) {
        const std::vector<double> base = row_of(qkv.base_k, sequence.begin + j, kv);
        add_outer(felt, base, sums.base_key[kv]);
        for (std::size_t c = 0; c < dim; ++c)
          sums.base_key_sum[static_cast<std::size_t>(kv) * dim + c] += felt * base[c];
      }
      if (sums.value.count > 0) add_outer(p * p, row_of(qkv.v, sequence.begin + j, kv), sums.value[kv]);
    }
    add_outer(felt_by_query, query.row, sums.query[kv]);
    if (sums.base_query.count == 0) return;
    add_outer(felt_by_query, row_of(qkv.base_q, sequence.begin + query.position, query.head), sums.base_query[kv]);
  });
}

namespace {

/// Turns columns p and q of m by a plane rotation: p' = c p - s q, q' = s p + c q.
void turn_columns(std::vector<double>& m, std::size_t dim, std::size_t p, std::size_t q, double c, double s) {
  for (std::size_t i = 0; i < dim; ++i) {
    const double x = m[i * dim + p], y = m[i * dim + q];
    m[i * dim + p] = c * x - s * y;
    m[i * dim + q] = s * x + c * y;
  }
}

/// Turns rows p and q of m likewise.
void turn_rows(std::vector<double>& m, std::size_t dim, std::size_t p, std::size_t q, double c, double s) {
  for (std::size_t i = 0; i < dim; ++i) {
    const double x = m[p * dim + i], y = m[q * dim + i];
    m[p * dim + i] = c * x - s * y;
    m[q * dim + i] = s * x + c * y;
  }
}

/// Zeroes every entry above the diagonal once. Returns whether there was one to be zeroed.
bool sweep(std::vector<double>& a, std::vector<double>& vectors, std::size_t dim) {
  bool turned = false;
  for (std::size_t p = 0; p < dim; ++p) {
    for (std::size_t q = p + 1; q < dim; ++q) {
      const double between = a[p * dim + q], low = a[p * dim + p], high = a[q * dim + q];
      if (std::abs(between) <= 1e-17 * (std::abs(low) + std::abs(high)) || between == 0) continue;
      const double theta = (high - low) / (2 * between);
      const double t = (theta < 0 ? -1 : 1) / (std::abs(theta) + std::hypot(theta, 1.0));
      const double c = 1 / std::hypot(t, 1.0), s = t * c;
      turn_columns(a, dim, p, q, c, s), turn_rows(a, dim, p, q, c, s);
      turn_columns(vectors, dim, p, q, c, s);
      turned = true;
    }
  }
  return turned;
}

}  // namespace

Eigenpairs eigh(std::span<const double> symmetric, int dim) {
  check_finite(symmetric);
  const auto size = static_cast<std::size_t>(dim);
  std::vector<double> a(symmetric.begin(), symmetric.end());
  std::vector<double> vectors(size * size);
  for (std::size_t i = 0; i < size; ++i) vectors[i * size + i] = 1;
  for (int sweeps = 0; sweep(a, vectors, size); ++sweeps) {
    if (sweeps == 60) throw NumericalError("an eigenproblem does not converge", "", "check the matrix for its scale");
  }
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return a[i * size + i]; });
  Eigenpairs pairs{std::vector<double>(size), std::vector<double>(size * size)};
  for (std::size_t j = 0; j < size; ++j) {
    pairs.values[j] = a[order[j] * size + order[j]];
    for (std::size_t i = 0; i < size; ++i) pairs.vectors[i * size + j] = vectors[i * size + order[j]];
  }
  return pairs;
}

}  // namespace oscar::reference
