// SPDX-License-Identifier: MIT
// Attention of one query token a sequence in fp64, and how far a decode kernel's outputs are from it.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "unit/kernels_cuda/int2_pages.hpp"

namespace oscar::test {

/// What a decode kernel was given and gave: bfloat16 queries (batch, q_heads, dim), outputs of that shape, and the log
/// of the sum of exponentials (batch, q_heads). Scores are scaled by 1 / sqrt(dim).
struct DecodeResult {
  int q_heads, kv_heads, dim;
  const std::vector<std::byte>& queries;
  std::vector<float> out, lse;
};

using DecodedRows = std::vector<std::vector<double>>;  // (tokens, dim)

/// One query head, row `row` of all; writes its output and returns the log of the sum of exponentials.
inline double attend_once(const DecodeResult& result, std::size_t row, const DecodedRows& keys,
                          const DecodedRows& values, std::vector<double>& expected) {
  std::vector<double> scores;
  double top = -INFINITY, sum = 0;
  for (const auto& key : keys) {
    double score = 0;
    for (std::size_t i = 0; i < key.size(); ++i) {
      score += key[i] * load(OSCAR_BFLOAT16, &result.queries[2 * (row * key.size() + i)]);
    }
    scores.push_back(score / std::sqrt(static_cast<double>(result.dim)));
    top = std::max(top, scores.back());
  }
  for (const double score : scores) sum += std::exp(score - top);
  for (std::size_t j = 0; j < values.size(); ++j) {
    const double weight = std::exp(scores[j] - top) / sum;
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += weight * values[j][i];
  }
  return sum > 0 ? top + std::log(sum) : -INFINITY;
}

/// |out - expected| / |expected| and |lse - expected| / max(1, |expected|), the largest of the sequences.
/// rows(keys, sequence, KV head) gives the decoded keys, or the values, of all tokens.
template <class Rows>
std::pair<double, double> decode_errors(const DecodeResult& result, int batch, const Rows& rows) {
  std::pair<double, double> worst;
  for (int b = 0; b < batch; ++b) {
    double error = 0, norm = 0;
    for (int h = 0; h < result.q_heads; ++h) {
      const int kv_head = h / (result.q_heads / result.kv_heads);
      const std::size_t row = static_cast<std::size_t>(b) * result.q_heads + h;
      std::vector<double> expected(static_cast<std::size_t>(result.dim));
      const double sum = attend_once(result, row, rows(true, b, kv_head), rows(false, b, kv_head), expected);
      const double got = result.lse[row];
      worst.second = std::max(worst.second, sum == got ? 0 : std::abs(sum - got) / std::max(1.0, std::abs(sum)));
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const double difference = result.out[row * expected.size() + i] - expected[i];
        error += difference * difference, norm += expected[i] * expected[i];
      }
    }
    worst.first = std::max(worst.first, error == 0 ? 0 : std::sqrt(error / norm));
  }
  return worst;
}

}  // namespace oscar::test
