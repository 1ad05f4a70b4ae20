// SPDX-License-Identifier: MIT
#include "kernels/reference/row_codec.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "kernels/arguments.hpp"

namespace oscar::reference {
namespace {

/// The code of each channel of a group, and the group's map back.
struct Group {
  std::vector<int> codes;
  float scale = 0, zero = 0;
};

Group encode_min_max(std::span<const float> x, int levels) {
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  Group group;
  group.scale = std::max(*high - *low, 1e-8F) / static_cast<float>(levels - 1);
  group.zero = -*low / group.scale;
  for (const float value : x) {
    const float place = value / group.scale + group.zero + 0.5F;
    const bool positive = place > 0;  // false for NaN, too: a group of equal huge values
    group.codes.push_back(positive ? static_cast<int>(std::min(place, static_cast<float>(levels - 1))) : 0);
  }
  return group;
}

Group encode_lloyd_max(std::span<const float> x) {
  constexpr double kThreshold = 0.98107, kOuterLevel = 1.50956, kWider = 1.16;
  const auto size = static_cast<double>(x.size());
  const double mean = strand_sum<double>(x.size(), [&](std::size_t i) { return double{x[i]}; }) / size;
  const double variance =
      strand_sum<double>(x.size(), [&](std::size_t i) { return (x[i] - mean) * (x[i] - mean); }) / size;
  const double deviation = std::sqrt(variance + 1e-8), scale = kWider * (2 * kOuterLevel / 3) * deviation;
  Group group;
  for (const float value : x) {
    const double t = (value - mean) / deviation;
    group.codes.push_back(t >= kThreshold ? 3 : t >= 0 ? 2 : t >= -kThreshold ? 1 : 0);
  }
  group.scale = static_cast<float>(scale), group.zero = static_cast<float>(1.5 - mean / scale);
  return group;
}

Group encode_group(const RowCodec& codec, std::span<const float> x) {
  if (codec.grid == Grid::kLloydMax) return encode_lloyd_max(x);
  return encode_min_max(x, codec.levels);
}

/// Returns what a scale or zero is once it is stored. float16 saturates, so that it never becomes infinite.
float as_stored(float value, DType dtype) {
  constexpr float kLargest = 65504;
  if (dtype == DType::kF16) return float_from_f16(f16_from_float(std::clamp(value, -kLargest, kLargest)));
  return dtype == DType::kBF16 ? round_to_bf16(value) : value;
}

}  // namespace

float clip_threshold(std::span<const float> row, double ratio, ClipSearch search) {
  const int size = static_cast<int>(row.size()), rank = std::min(static_cast<int>(ratio * size), size - 1);
  std::vector<float> magnitudes;
  for (const float x : row) magnitudes.push_back(std::abs(x));
  std::sort(magnitudes.begin(), magnitudes.end());
  if (search == ClipSearch::kSort) return magnitudes[static_cast<std::size_t>(rank)];
  float low = 0, high = magnitudes.back();
  for (int halvings = std::bit_width(row.size()) - 1; halvings > 0; --halvings) {
    const float middle = (low + high) / 2;
    const auto above = std::count_if(magnitudes.begin(), magnitudes.end(), [&](float x) { return x > middle; });
    (above > size - rank ? low : high) = middle;
  }
  return high;
}

QuantizedRows encode_row(const RowCodec& codec, std::span<const float> row) {
  const auto size = static_cast<std::size_t>(checked_group_size(codec, static_cast<int>(row.size())));
  std::vector<float> clipped(row.begin(), row.end());
  if (codec.clip_ratio > 0) {
    const float threshold = clip_threshold(row, codec.clip_ratio, codec.clip_search);
    for (float& x : clipped) x = std::clamp(x, -threshold, threshold);
  }
  QuantizedRows encoded;
  for (std::size_t first = 0; first < row.size(); first += size) {
    const Group group = encode_group(codec, std::span(clipped).subspan(first, size));
    for (const int code : group.codes) encoded.codes.push_back(static_cast<std::uint8_t>(code));
    encoded.scale.push_back(as_stored(group.scale, codec.scale_dtype));
    encoded.zero.push_back(as_stored(group.zero, codec.scale_dtype));
  }
  return encoded;
}

void decode_row(const QuantizedRows& encoded, std::span<float> row) {
  const std::size_t group_size = row.size() / encoded.scale.size();
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::size_t group = i / group_size;
    row[i] = (static_cast<float>(encoded.codes[i]) - encoded.zero[group]) * encoded.scale[group];
  }
}

}  // namespace oscar::reference
