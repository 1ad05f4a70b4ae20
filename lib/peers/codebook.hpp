// SPDX-License-Identifier: MIT
// Quantisers with levels at any place, and Lloyd's iteration that finds the best ones.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace oscar::methods {

struct Codebook {
  std::vector<float> levels;  // ascending
  std::vector<float> bounds;  // ascending, one fewer: x takes the level whose index is the number of bounds <= x

  [[nodiscard]] float nearest(float x) const {
    std::size_t i = 0;
    while (i < bounds.size() && bounds[i] <= x) ++i;
    return levels[i];
  }
  /// Replaces each value by its nearest level.
  void take_nearest(std::span<float> values) const;
};

/// Bounds half-way between levels.
[[nodiscard]] Codebook codebook_of(std::span<const double> levels);

/// Least squared error for N(0, 1) (Lloyd 1982, Max 1960). bits: 1 to 4.
[[nodiscard]] const Codebook& gaussian_codebook(int bits);

/// Least squared error for a sample: one-dimensional k-means from quantiles, every value with the same weight. Fewer
/// than `levels` different values: levels repeat.
[[nodiscard]] Codebook codebook_of_sample(std::vector<float> sample, int levels);

}  // namespace oscar::methods
