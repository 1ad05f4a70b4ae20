// SPDX-License-Identifier: MIT
// KVQuant nuq2-1% (arXiv 2401.18079): keys before RoPE per channel, values per token, mapped to [-1, 1] by their 0.5th
// and 99.5th percentiles; what lies outside stays fp16, the rest takes the nearest of four levels of the layer.
// Its ranges of keys and its levels come from calibration text, levels weighted by gradients: here from the history
// itself, which favours it, and unweighted, which does not. Its Q-Norm is left out.
#include <algorithm>
#include <cmath>

#include "codec/methods/codebook.hpp"
#include "codec/methods/families.hpp"
#include "codec/methods/number_formats.hpp"
#include "codec/methods/rope.hpp"

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

Range range_of(std::vector<float> values) {
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
  std::vector<Range> ranges(of_columns ? m.cols : m.rows);
  parallel_for(ranges.size(), [&](std::size_t i) {
    std::vector<float> values(of_columns ? m.rows : m.cols);
    for (std::size_t k = 0; k < values.size(); ++k) values[k] = of_columns ? m.at(k, i) : m.at(i, k);
    ranges[i] = range_of(std::move(values));
  });
  return ranges;
}

void quantize(Matrix m, bool by_column) {
  const std::vector<Range> ranges = ranges_of(m, by_column);
  const auto range_at = [&](std::size_t at) { return ranges[by_column ? at % m.cols : at / m.cols]; };
  std::vector<float> sample;
  // An odd stride meets every column.
  const std::size_t stride = m.data.size() / kSampleSize | 1U;
  for (std::size_t at = 0; at < m.data.size(); at += stride) {
    const Range range = range_at(at);
    if (range.holds(m.data[at])) sample.push_back((m.data[at] - range.middle()) / range.half());
  }
  if (sample.empty()) return;
  const Codebook book = codebook_of_sample(std::move(sample), 4);
  for_each_row(m, [&](std::span<float> row) {
    const auto begin = static_cast<std::size_t>(row.data() - m.data.data());
    for (std::size_t j = 0; j < row.size(); ++j) {
      const Range range = range_at(begin + j);
      row[j] = range.holds(row[j])
                   ? book.nearest((row[j] - range.middle()) / range.half()) * range.half() + range.middle()
                   : round_to(NumberFormat::kF16, row[j]);
    }
  });
}

SideMethod side(bool by_column) {
  return {[=](const History& history) { quantize(history.by_token(), by_column); },
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
