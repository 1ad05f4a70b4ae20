// SPDX-License-Identifier: MIT
// SKVQ (arXiv 2405.06219) at 2 bits: the channels of all heads of a token, keys before RoPE, are grouped by k-means
// over their (min, max), as many clusters as groups of 128; each token's cluster gets min and max times a clip factor
// of the layer, q = even((x - min) / s), s and min in FP8 e4m3. Its clusters and factors come from calibration text:
// here from the history itself, which favours it. Its option of 1.5-bit values is left out.
#include <array>
#include <cmath>
#include <limits>

#include "peers/affine.hpp"
#include "peers/families.hpp"
#include "peers/rope.hpp"

namespace oscar::methods {
namespace {

constexpr std::size_t kSkvqGroup = 128, kIterations = 100, kSampleRows = 512;
constexpr int kClipSteps = 10;  // factors 1, 0.95, … 0.55

using Point = std::array<double, 2>;

std::vector<Point> channel_ranges(Matrix m) {
  std::vector<Point> ranges(m.cols);
  along_columns(m, m.rows, [&](std::span<const float> values, std::size_t j) {
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    ranges[j] = {*low, *high};
  });
  return ranges;
}

std::size_t closest(const std::vector<Point>& centres, const Point& p) {
  const auto distance = [&](const Point& c) { return std::hypot(c[0] - p[0], c[1] - p[1]); };
  std::size_t best = 0;
  for (std::size_t c = 1; c < centres.size(); ++c) {
    if (distance(centres[c]) < distance(centres[best])) best = c;
  }
  return best;
}

/// Labels of k-means, which starts from evenly spaced members of the points in ascending order.
std::vector<std::size_t> cluster(const std::vector<Point>& points, std::size_t count) {
  const std::vector<std::size_t> order = sorted_order(points);
  std::vector<Point> centres;
  for (std::size_t c = 0; c < count; ++c) centres.push_back(points[order[(2 * c + 1) * points.size() / (2 * count)]]);
  std::vector<std::size_t> labels(points.size());
  for (std::size_t round = 0; round < kIterations; ++round) {
    std::vector<Point> sums(count);
    std::vector<double> members(count);
    for (std::size_t i = 0; i < points.size(); ++i) {
      const std::size_t c = labels[i] = closest(centres, points[i]);
      sums[c] = {sums[c][0] + points[i][0], sums[c][1] + points[i][1]};
      ++members[c];
    }
    for (std::size_t c = 0; c < count; ++c) {
      if (members[c] > 0) centres[c] = {sums[c][0] / members[c], sums[c][1] / members[c]};
    }
  }
  return labels;
}

/// change(values) for each run of equal labels of a row.
template <class Change>
void along_clusters(Matrix m, const std::vector<std::size_t>& labels, const Change& change) {
  for_each_row(m, [&](std::span<float> row) {
    for (std::size_t begin = 0, end = 0; begin < row.size(); begin = end) {
      while (end < row.size() && labels[end] == labels[begin]) ++end;
      change(row.subspan(begin, end - begin));
    }
  });
}

Affine clipped(float factor) { return {.parameters = NumberFormat::kE4M3, .shrink = factor, .smallest_scale = 1e-5F}; }

/// The clip factor with the least squared error on evenly spread rows.
float best_clip(Matrix m, const std::vector<std::size_t>& labels) {
  std::vector<float> sample;
  for (std::size_t i = 0; i < m.rows; i += m.rows / kSampleRows + 1) {
    sample.insert(sample.end(), m.row(i).begin(), m.row(i).end());
  }
  double least = std::numeric_limits<double>::max();
  float best = 1;
  for (int step = 0; step < kClipSteps; ++step) {
    const float factor = 1 - 0.05F * static_cast<float>(step);
    std::vector<float> decoded = sample;
    along_clusters({decoded, decoded.size() / m.cols, m.cols}, labels, clipped(factor));
    double error = 0;
    for (std::size_t i = 0; i < sample.size(); ++i) error += std::pow(double{sample[i]} - decoded[i], 2);
    if (error < least) least = error, best = factor;
  }
  return best;
}

void quantize_skvq(const History& history) {
  const Matrix m = by_token(history);
  std::vector<std::size_t> labels = cluster(channel_ranges(m), (m.cols + kSkvqGroup - 1) / kSkvqGroup);
  const std::vector<std::size_t> order = sorted_order(labels);
  std::sort(labels.begin(), labels.end());
  take_columns(m, order);
  along_clusters(m, labels, clipped(best_clip(m, labels)));
  put_columns(m, order);
}

}  // namespace

Family skvq_methods() {
  const auto bits = [](const KvShape& shape) {
    return StoredBits{2 + 16 * groups_per_element(shape.head_dim * shape.num_kv_heads, kSkvqGroup), 0};
  };
  return {{"skvq",
           "SKVQ at 2 bits; clusters and clip factors of the history itself",
           {5, 128},
           before_rope({quantize_skvq, bits}),
           {quantize_skvq, bits},
           true}};
}

}  // namespace oscar::methods
