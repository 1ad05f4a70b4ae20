// SPDX-License-Identifier: MIT
#include "kernels/reference/key_gradient.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/reference/row_codec.hpp"

namespace oscar::reference {
namespace {

/// Returns row `at` of rows (n, d) times U.
std::vector<double> turned(const std::vector<float>& rows, std::size_t at, std::span<const float> rotation,
                           std::size_t dim) {
  std::vector<double> result(dim);
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t c = 0; c < dim; ++c) result[c] += double{rows[at * dim + i]} * double{rotation[i * dim + c]};
  }
  return result;
}

double score(const std::vector<double>& query, const std::vector<double>& key) {
  double sum = 0;
  for (std::size_t c = 0; c < key.size(); ++c) sum += query[c] * key[c];
  return sum / std::sqrt(static_cast<double>(key.size()));
}

/// Returns log p_j = s_j - log sum_j exp(s_j).
std::vector<double> log_softmax(std::vector<double> scores) {
  const double highest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const double s : scores) sum += std::exp(s - highest);
  for (double& s : scores) s -= highest + std::log(sum);
  return scores;
}

}  // namespace

KlGradient key_gradient(const KeyReads& reads, std::span<const float> rotation, const RowCodec& codec,
                        Windows windows) {
  const auto dim = static_cast<std::size_t>(reads.head_dim);
  std::vector<std::vector<double>> keys, errors;
  for (std::size_t j = 0; j < reads.keys.size() / dim; ++j) {
    const std::vector<double>& key = keys.emplace_back(turned(reads.keys, j, rotation, dim));
    const std::vector<float> row(key.begin(), key.end());
    std::vector<float> decoded(dim);
    decode_row(encode_row(codec, row), decoded);
    std::vector<double>& error = errors.emplace_back(dim);
    for (std::size_t c = 0; c < dim; ++c) error[c] = double{decoded[c]} - double{row[c]};
  }
  KlGradient sums{0, std::vector<double>(dim * dim)};
  for (std::size_t i = 0; i < reads.positions.size(); ++i) {
    const std::vector<double> query = turned(reads.queries, i, rotation, dim);
    const auto seen = static_cast<std::size_t>(reads.positions[i]) + 1;
    const auto first = static_cast<std::size_t>(windows.sink), recent = static_cast<std::size_t>(windows.recent);
    const std::size_t end = seen > recent ? seen - recent : 0;  // the history is [first, end)
    std::vector<double> exact(seen), approximate(seen);
    for (std::size_t j = 0; j < seen; ++j) {
      exact[j] = score(query, keys[j]);
      approximate[j] = exact[j] + (j >= first && j < end ? score(query, errors[j]) : 0);
    }
    const std::vector<double> log_p = log_softmax(exact), log_p_hat = log_softmax(approximate);
    for (std::size_t j = 0; j < seen; ++j) sums.softmax_kl += std::exp(log_p[j]) * (log_p[j] - log_p_hat[j]);
    for (std::size_t j = first; j < end; ++j) {
      const double change = (std::exp(log_p_hat[j]) - std::exp(log_p[j])) / std::sqrt(static_cast<double>(dim));
      for (std::size_t a = 0; a < dim; ++a) {
        for (std::size_t b = 0; b < dim; ++b) sums.gradient[a * dim + b] += change * query[a] * errors[j][b];
      }
    }
  }
  return sums;
}

}  // namespace oscar::reference
