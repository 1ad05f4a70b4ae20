// SPDX-License-Identifier: MIT
#include "kernels/cpu/row_codec.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/check.hpp"
#include "base/threads.hpp"
#include "base/vector_clones.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cpu/ops.hpp"
#include "kernels/reference/coded_row.hpp"

namespace oscar::cpu {
namespace {

constexpr std::int64_t kRowsPerTask = 1024;

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

GroupParams encode(const RowCodec& codec, std::span<const float> group, std::span<std::uint8_t> codes) {
  switch (codec.grid) {
    case Grid::kLeastSquares:
      return encode_group_lsq(group, codec.levels, codes);
    case Grid::kLloydMax:
      return encode_group_lloyd_max(group, codes);
    case Grid::kMinMax:
      break;
  }
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

void decode_row(std::span<const std::uint8_t> codes, std::span<const GroupParams> params, Precision precision,
                std::span<float> decoded) {
  const std::size_t group_size = codes.size() / params.size();
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const GroupParams& p = params[i / group_size];
    const float value = (static_cast<float>(codes[i]) - p.zero) * p.scale;
    decoded[i] = precision == Precision::kServing ? round_to_bf16(value) : value;
  }
}

/// One, if all heads have the same.
std::vector<RowCodec> codecs_of_heads(const HistoryCodec& codec) {
  std::vector<RowCodec> codecs(std::max<std::size_t>(codec.head_clip_ratios.size(), 1));
  for (std::size_t head = 0; head < codecs.size(); ++head) codecs[head] = codec.of_head(static_cast<int>(head));
  return codecs;
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

OSCAR_VECTOR_CLONES GroupParams encode_group_lsq(std::span<const float> group, int levels,
                                                 std::span<std::uint8_t> codes) {
  constexpr int kRefits = 3;
  const auto size = static_cast<double>(group.size());
  const double mean = strand_sum(group.size(), [&](std::size_t i) { return double{group[i]}; }) / size;
  const auto centred = [&](std::size_t i) { return group[i] - mean; };
  const double variance = strand_sum(group.size(), [&](std::size_t i) { return centred(i) * centred(i); }) / size;
  const LsqStart start = lsq_start(levels);
  double scale = std::sqrt(variance) * start.step + 1e-8, low = mean - start.centre * scale;
  const auto take_codes = [&] {
    for (std::size_t i = 0; i < group.size(); ++i) {
      const double position = std::floor((group[i] - low) / scale + 0.5);
      codes[i] = static_cast<std::uint8_t>(std::clamp(position, 0.0, static_cast<double>(levels - 1)));
    }
  };
  for (int refit = 0; refit < kRefits; ++refit) {
    take_codes();
    const double code_mean =
        strand_sum(group.size(), [&](std::size_t i) { return static_cast<double>(codes[i]); }) / size;
    const double covariance =
        strand_sum(group.size(), [&](std::size_t i) { return (codes[i] - code_mean) * centred(i); });
    const double spread =
        strand_sum(group.size(), [&](std::size_t i) { return (codes[i] - code_mean) * (codes[i] - code_mean); });
    scale = std::max(covariance / std::max(spread, 1e-6), 1e-8);
    low = mean - scale * code_mean;
  }
  take_codes();
  const double energy = strand_sum(group.size(), [&](std::size_t i) { return double{group[i]} * group[i]; });
  const double projection =
      strand_sum(group.size(), [&](std::size_t i) { return group[i] * (codes[i] * scale + low); });
  return {static_cast<float>(scale * (energy / std::max(projection, 1e-9))), static_cast<float>(-low / scale)};
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

void encode_row(std::span<const float> row, const RowCodec& codec, int group_size, std::span<float> scratch,
                std::span<std::uint8_t> codes, std::span<GroupParams> params) {
  std::span<const float> source = row;
  if (codec.clip_ratio > 0) {
    const float threshold = clip_threshold(row, codec.clip_ratio, codec.clip_search, scratch);
    for (std::size_t i = 0; i < row.size(); ++i) scratch[i] = std::clamp(row[i], -threshold, threshold);
    source = scratch.first(row.size());
  }
  const auto size = static_cast<std::size_t>(group_size);
  for (std::size_t group = 0; group < params.size(); ++group) {
    params[group] =
        stored(encode(codec, source.subspan(group * size, size), codes.subspan(group * size, size)), codec.scale_dtype);
  }
}

namespace {

/// Packs rows (tokens, heads, head_dim) as the coded cache stores them, and decodes the bytes.
void pass_through_coded_rows(std::span<const float> rows, int head_dim, const std::vector<CodedFormat>& formats,
                             Precision precision, std::span<float> decoded, std::vector<std::uint8_t>* packed) {
  const auto dim = static_cast<std::size_t>(head_dim);
  const std::size_t num_rows = rows.size() / dim;
  OSCAR_CHECK(num_rows * dim == rows.size() && decoded.size() == rows.size());
  for (const CodedFormat& format : formats) reference::require_valid(format);
  OSCAR_CHECK(packed == nullptr || formats.size() == 1);
  if (packed != nullptr) packed->resize(num_rows * reference::coded_row_bytes(formats.front()));
  parallel_for((num_rows + kRowsPerTask - 1) / kRowsPerTask, [&](std::size_t task) {
    std::vector<std::uint8_t> bytes;
    const std::size_t end = std::min(num_rows, (task + 1) * kRowsPerTask);
    for (std::size_t row = task * kRowsPerTask; row < end; ++row) {
      const CodedFormat& format = formats[row % formats.size()];
      const std::span<float> out = decoded.subspan(row * dim, dim);
      bytes.resize(reference::coded_row_bytes(format));
      reference::encode_coded_row(format, rows.subspan(row * dim, dim), bytes);
      reference::decode_coded_row(format, bytes, out);
      if (packed != nullptr)
        std::ranges::copy(bytes, packed->begin() + static_cast<std::ptrdiff_t>(row * bytes.size()));
      if (precision == Precision::kExact) continue;
      for (float& value : out) value = round_to_bf16(value);
    }
  });
}

}  // namespace

void quantize(std::span<const float> rows, int head_dim, const HistoryCodec& codec, Precision precision,
              std::span<float> decoded, QuantizedRows* out) {
  if (codec.coded != nullptr) {
    if (out != nullptr) *out = {};
    return pass_through_coded_rows(rows, head_dim, *codec.coded, precision, decoded,
                                   out != nullptr ? &out->codes : nullptr);
  }
  const int group_size = checked_group_size(codec, head_dim);
  const auto dim = static_cast<std::size_t>(head_dim);
  const std::size_t groups = dim / static_cast<std::size_t>(group_size);
  const std::size_t num_rows = rows.size() / dim;
  OSCAR_CHECK(num_rows * dim == rows.size() && decoded.size() == rows.size());
  if (out != nullptr) {
    out->codes.resize(rows.size());
    out->scale.resize(num_rows * groups);
    out->zero.resize(num_rows * groups);
  }
  const std::vector<RowCodec> of_head = codecs_of_heads(codec);
  parallel_for((num_rows + kRowsPerTask - 1) / kRowsPerTask, [&](std::size_t task) {
    std::vector<float> scratch(dim);
    std::vector<std::uint8_t> codes(dim);
    std::vector<GroupParams> params(groups);
    const std::size_t end = std::min(num_rows, (task + 1) * kRowsPerTask);
    for (std::size_t row = task * kRowsPerTask; row < end; ++row) {
      encode_row(rows.subspan(row * dim, dim), of_head[row % of_head.size()], group_size, scratch, codes, params);
      decode_row(codes, params, precision, decoded.subspan(row * dim, dim));
      if (out == nullptr) continue;
      std::copy(codes.begin(), codes.end(), out->codes.begin() + static_cast<std::ptrdiff_t>(row * dim));
      for (std::size_t group = 0; group < groups; ++group) {
        out->scale[row * groups + group] = params[group].scale;
        out->zero[row * groups + group] = params[group].zero;
      }
    }
  });
}

}  // namespace oscar::cpu
