// SPDX-License-Identifier: MIT
#include "kernels/cpu/row_codec.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/arguments.hpp"

namespace oscar::cpu {
namespace {

float bisected_threshold(std::span<const float> magnitudes, int rank) {
  const auto size = magnitudes.size();
  const auto budget = static_cast<std::ptrdiff_t>(size) - rank;
  float low = 0.0F;
  float high = *std::max_element(magnitudes.begin(), magnitudes.end());
  for (int i = std::bit_width(size) - 1; i > 0; --i) {
    const float middle = (low + high) * 0.5F;
    const auto above = std::count_if(magnitudes.begin(), magnitudes.end(), [=](float m) { return m > middle; });
    (above > budget ? low : high) = middle;
  }
  return high;
}

GroupParams encode_group_as(const RowCodec& codec, std::span<const float> group, std::span<std::uint8_t> codes) {
  if (codec.grid == Grid::kLloydMax) return encode_group_lloyd_max(group, codes);
  return encode_group(group, codec.levels, codes);
}

/// What a reader finds. float16 saturates, so that rows almost without range decode to finite numbers.
GroupParams stored(GroupParams params, DType dtype) {
  const auto rounded = [&](float value) {
    if (dtype == DType::kBF16) return round_to_bf16(value);
    if (dtype == DType::kF16) return float_from_f16(f16_from_float(std::clamp(value, -kLargestF16, kLargestF16)));
    return value;
  };
  return {rounded(params.scale), rounded(params.zero)};
}

}  // namespace

float clip_threshold(std::span<const float> row, double ratio, ClipSearch search, std::span<float> scratch) {
  const int size = static_cast<int>(row.size());
  const int rank = clip_rank(ratio, size);
  std::transform(row.begin(), row.end(), scratch.begin(), [](float x) { return std::abs(x); });
  if (search == ClipSearch::kBisect) return bisected_threshold(scratch.first(row.size()), rank);
  std::nth_element(scratch.begin(), scratch.begin() + rank, scratch.begin() + size);
  return scratch[static_cast<std::size_t>(rank)];
}

GroupParams encode_group(std::span<const float> group, int levels, std::span<std::uint8_t> codes) {
  float low = group[0];
  float high = group[0];
  for (const float x : group) {
    low = std::min(low, x);
    high = std::max(high, x);
  }
  const float highest_code = static_cast<float>(levels - 1);
  const float scale = std::max(high - low, 1e-8F) / highest_code;
  const float zero = -low / scale;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const float position = group[i] / scale + zero + 0.5F;
    // Rounding can push the ends past the code range; a group of equal huge values makes the position NaN.
    codes[i] = static_cast<std::uint8_t>(position > 0.0F ? std::min(position, highest_code) : 0.0F);
  }
  return {scale, zero};
}

GroupParams encode_group_lloyd_max(std::span<const float> group, std::span<std::uint8_t> codes) {
  const auto size = static_cast<double>(group.size());
  const double mean = strand_sum(group.size(), [&](std::size_t i) { return double{group[i]}; }) / size;
  const double variance =
      strand_sum(group.size(), [&](std::size_t i) { return (group[i] - mean) * (group[i] - mean); }) / size;
  const double deviation = std::sqrt(variance + 1e-8), scale = kLloydMaxStep * deviation;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const double standard = (group[i] - mean) / deviation;
    codes[i] = static_cast<std::uint8_t>((standard >= -kLloydMaxThreshold ? 1 : 0) + (standard >= 0 ? 1 : 0) +
                                         (standard >= kLloydMaxThreshold ? 1 : 0));
  }
  return {static_cast<float>(scale), static_cast<float>(1.5 - mean / scale)};
}

RowEncoder::RowEncoder(int head_dim, int group_size)
    : group_size_(static_cast<std::size_t>(group_size)),
      clipped_(static_cast<std::size_t>(head_dim)),
      codes_(clipped_.size()),
      parameters_(2 * (clipped_.size() / group_size_)) {}

void RowEncoder::encode(std::span<const float> row, const RowCodec& codec) {
  std::span<const float> source = row;
  if (codec.clip_ratio > 0) {
    const float threshold = clip_threshold(row, codec.clip_ratio, codec.clip_search, clipped_);
    for (std::size_t i = 0; i < row.size(); ++i) clipped_[i] = std::clamp(row[i], -threshold, threshold);
    source = clipped_;
  }
  for (std::size_t first = 0, group = 0; first < row.size(); first += group_size_, ++group) {
    const GroupParams params = stored(
        encode_group_as(codec, source.subspan(first, group_size_), std::span(codes_).subspan(first, group_size_)),
        codec.scale_dtype);
    parameters_[2 * group] = params.scale, parameters_[2 * group + 1] = params.zero;
  }
}

void decode_row(std::span<const std::uint8_t> codes, std::span<const float> parameters, std::span<float> row) {
  const std::size_t groups = parameters.size() / 2, size = row.size() / groups;
  for (std::size_t group = 0; group < groups; ++group) {
    const float scale = parameters[2 * group], zero = parameters[2 * group + 1];
    for (std::size_t i = group * size; i < (group + 1) * size; ++i)
      row[i] = (static_cast<float>(codes[i]) - zero) * scale;
  }
}

}  // namespace oscar::cpu
