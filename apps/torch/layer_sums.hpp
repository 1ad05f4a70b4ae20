// SPDX-License-Identifier: MIT
// What observe() remembers of a layer, in host memory and without torch: fp64 sums of outer products per KV head, as in
// moments/take.hpp, and a uniform sample of (k, v) rows, which stands in for a second pass over the data
// (score-weighted value moments, "sst", need the query moments of everything). Memory is bounded by the shape.
// Non-goals: softmax objectives (oto, fisher), sliding windows.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "tensor/tensor.hpp"

namespace oscar::operators {

struct LayerShape {
  int num_q_heads = 0, num_kv_heads = 0, key_dim = 0, value_dim = 0;
  DType dtype = DType::kF32;     // of rows
  std::int64_t sample_size = 0;  // tokens that the sample holds at most
  friend bool operator==(const LayerShape&, const LayerShape&) = default;
};

struct LayerSums {
  LayerShape shape;
  MatrixStack qqt, ktk, vtv;     // (num_kv_heads, dim, dim)
  std::vector<double> key_sums;  // (num_kv_heads, key_dim)
  std::int64_t tokens = 0, sequences = 0;
  std::vector<std::byte> k_rows, v_rows;  // (min(tokens, sample_size), num_kv_heads, dim), as observed

  explicit LayerSums(const LayerShape& of);
  /// min(tokens, sample_size)
  [[nodiscard]] std::int64_t sampled() const;
  [[nodiscard]] HeadsView sampled_keys() const;
  [[nodiscard]] HeadsView sampled_values() const;
};

/// Rows of tokens that count, (tokens, heads, dim) of one type and number of tokens.
struct CountedRows {
  HeadsView q, k, v;
  double query_factor = 1;  // on q^T q
  std::int64_t sequences = 0;
};

/// Adds rows of the layer's shape; `seed` decides which of them the sample keeps. Sums are those of the CPU backend.
void add_rows(LayerSums& layer, const CountedRows& rows, std::int64_t seed);

/// Adds sums of other data. Throws DataError that names layer `id` if the shapes differ.
void merge(LayerSums& to, const LayerSums& from, std::int64_t id, std::mt19937_64& random);

}  // namespace oscar::operators
