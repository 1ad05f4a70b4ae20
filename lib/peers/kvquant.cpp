// SPDX-License-Identifier: MIT
// KVQuant nuq2-1% (arXiv 2401.18079): keys before RoPE per channel, values per token, mapped to [-1, 1] by their 0.5th
// and 99.5th percentiles; what lies outside stays fp16, the rest takes the nearest of four levels of the layer.
// Its ranges of keys and its levels come from calibration text, levels weighted by gradients: here from the history
// itself, which favours it, and unweighted, which does not. Its Q-Norm is left out.
#include <algorithm>
#include <cmath>

#include "peers/codebook.hpp"
#include "peers/families.hpp"
#include "peers/number_formats.hpp"
#include "peers/rope.hpp"

namespace oscar::methods {
namespace {

constexpr double kOutliers = 0.01;
constexpr double kBitsPerOutlier = 32;  // value and index
constexpr std::size_t kSampleSize = 1U << 16;

struct Range {
  float low, high;

  [[nodiscard]] bool holds(float x) const { return low <= x && x <= high; }
  [[nodiscard]] float middle() const { return (low + high) / 2; }
  [[nodiscard]] float half() const { return std::max((high - low) / 2, 1e-8F); }
};

Range inlier_range(std::vector<float> values) {
  const auto at = [&](double share) {
    const auto rank = std::lround(share * static_cast<double>(values.size() - 1));
    std::nth_element(values.begin(), values.begin() + rank, values.end());
    return values[static_cast<std::size_t>(rank)];
  };
  const float low = at(kOutliers / 2);
  return {low, at(1 - kOutliers / 2)};
}

/// Ranges of columns, or of rows.
std::vector<Range> ranges_of(Matrix m, bool of_columns) {
  std::vector<Range> ranges;
  if (!of_columns) {
    ranges.resize(m.rows);
    parallel_for(m.rows, [&](std::size_t i) { ranges[i] = inlier_range({m.row(i).begin(), m.row(i).end()}); });
    return ranges;
  }
  constexpr std::size_t kTogether = 16;  // a cache line of each row
  ranges.resize(m.cols);
  parallel_for((m.cols + kTogether - 1) / kTogether, [&](std::size_t task) {
    const std::size_t first = task * kTogether, count = std::min(kTogether, m.cols - first);
    std::vector<std::vector<float>> columns(count, std::vector<float>(m.rows));
    for (std::size_t i = 0; i < m.rows; ++i) {
      for (std::size_t j = 0; j < count; ++j) columns[j][i] = m.at(i, first + j);
    }
    for (std::size_t j = 0; j < count; ++j) ranges[first + j] = inlier_range(std::move(columns[j]));
  });
  return ranges;
}

void quantize_kvquant(Matrix m, bool by_column) {
  const std::vector<Range> ranges = ranges_of(m, by_column);
  const auto range_at = [&](std::size_t row, std::size_t column) { return ranges[by_column ? column : row]; };
  std::vector<float> sample;
  // An odd stride meets every column.
  const std::size_t stride = m.data.size() / kSampleSize | 1U;
  for (std::size_t at = 0; at < m.data.size(); at += stride) {
    const Range range = range_at(at / m.cols, at % m.cols);
    if (range.holds(m.data[at])) sample.push_back((m.data[at] - range.middle()) / range.half());
  }
  if (sample.empty()) return;
  const Codebook book = codebook_of_sample(std::move(sample), 4);
  for_each_row(m, [&](std::span<float> row) {
    const std::size_t i = static_cast<std::size_t>(row.data() - m.data.data()) / m.cols;
    thread_local std::vector<float> levels;
    levels.resize(row.size());
    for (std::size_t j = 0; j < row.size(); ++j) {
      const Range range = range_at(i, j);
      levels[j] = (row[j] - range.middle()) / range.half();
    }
    book.take_nearest(levels);
    for (std::size_t j = 0; j < row.size(); ++j) {
      const Range range = range_at(i, j);
      row[j] = range.holds(row[j]) ? levels[j] * range.half() + range.middle() : round_to(NumberFormat::kF16, row[j]);
    }
  });
}

SideMethod side(bool by_column) {
  return {[=](const History& history) { quantize_kvquant(by_token(history), by_column); },
          [=](const KvShape& shape) {
            const double ranges = by_column ? 0 : 2.0 / (shape.head_dim * shape.num_kv_heads);
            return StoredBits{2 + kOutliers * kBitsPerOutlier, ranges};
          }};
}

}  // namespace

Family kvquant_methods() {
  return {{"kvquant_nuq2",
           "KVQuant nuq2-1%; ranges and unweighted levels of the history itself",
           {1, 0},
           before_rope(side(true)),
           side(false),
           true}};
}

}  // namespace oscar::methods
