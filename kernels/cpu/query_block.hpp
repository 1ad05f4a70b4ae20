// SPDX-License-Identifier: MIT
// What compare_attention() works on at a time, and matrices (rows, keys) of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/mixed_block.hpp"

namespace oscar::cpu {

/// Some queries of some heads that share keys, with the keys before them. A row is a query of a head: all queries of
/// the first head come first.
struct QueryBlock {
  std::span<const std::int64_t> query_positions;
  std::int64_t first = 0;  // of the queries
  int first_head = 0, heads = 0;
  std::vector<std::int64_t> positions;  // of rows

  QueryBlock(std::span<const std::int64_t> of_queries, std::int64_t first_query, int head, int count)
      : query_positions(of_queries), first(first_query), first_head(head), heads(count) {
    for (int h = 0; h < count; ++h) positions.insert(positions.end(), of_queries.begin(), of_queries.end());
  }
  [[nodiscard]] std::size_t head_of(std::size_t row) const { return row / query_positions.size(); }
  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(positions.size()); }
  [[nodiscard]] std::int64_t keys() const { return positions.back() + 1; }
  [[nodiscard]] std::vector<double> queries(const HeadsView& q) const {
    const HeadsView asked = q.tokens(first, first + static_cast<std::int64_t>(query_positions.size()));
    std::vector<double> all;
    for (int h = 0; h < heads; ++h) {
      const std::vector<double> head = load_head<double>(asked, first_head + h);
      all.insert(all.end(), head.begin(), head.end());
    }
    return all;
  }
  /// Returns the part of a row of a matrix (rows, keys) that is of the keys that the query sees.
  template <class Matrix>
  [[nodiscard]] auto seen(Matrix& matrix, std::size_t row) const {
    return std::span(matrix).subspan(row * static_cast<std::size_t>(keys()),
                                     static_cast<std::size_t>(positions[row]) + 1);
  }
  void clear_unseen(std::vector<double>& matrix, std::size_t row) const {
    const auto width = static_cast<std::size_t>(keys()), count = static_cast<std::size_t>(positions[row]) + 1;
    const std::span<double> unseen = std::span(matrix).subspan(row * width + count, width - count);
    std::fill(unseen.begin(), unseen.end(), 0.0);
  }
};

}  // namespace oscar::cpu
