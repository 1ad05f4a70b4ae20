// SPDX-License-Identifier: MIT
#include "kernels/reference/row_codec.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "base/errors.hpp"
#include "kernels/arguments.hpp"
#include "kernels/reference/coded_page.hpp"

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

bool is_int2(int levels, std::size_t count) { return levels == 4 && count % 4 == 0; }

}  // namespace

float clip_threshold(std::span<const float> row, double ratio) {
  const int size = static_cast<int>(row.size()), rank = std::min(static_cast<int>(ratio * size), size - 1);
  std::vector<float> magnitudes;
  for (const float x : row) magnitudes.push_back(std::abs(x));
  std::sort(magnitudes.begin(), magnitudes.end());
  return magnitudes[static_cast<std::size_t>(rank)];
}

QuantizedRows encode_row(const RowCodec& codec, std::span<const float> row) {
  const auto size = static_cast<std::size_t>(checked_group_size(codec, static_cast<int>(row.size())));
  std::vector<float> clipped(row.begin(), row.end());
  if (codec.clip_ratio > 0) {
    const float threshold = clip_threshold(row, codec.clip_ratio);
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

std::size_t code_bytes(int levels, std::size_t count) { return is_int2(levels, count) ? count / 4 : count; }

void pack_codes(std::span<const std::uint8_t> codes, int levels, std::span<std::uint8_t> bytes) {
  const std::size_t count = bytes.size();
  OSCAR_CHECK(count == code_bytes(levels, codes.size()));
  OSCAR_CHECK(std::ranges::all_of(codes, [&](std::uint8_t code) { return code < levels; }));
  if (!is_int2(levels, codes.size())) return void(std::ranges::copy(codes, bytes.begin()));
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::uint8_t>(codes[i] | codes[i + count] << 2U | codes[i + 2 * count] << 4U |
                                         codes[i + 3 * count] << 6U);
  }
}

void unpack_codes(std::span<const std::uint8_t> bytes, int levels, std::span<std::uint8_t> codes) {
  const std::size_t count = bytes.size();
  OSCAR_CHECK(count == code_bytes(levels, codes.size()));
  if (!is_int2(levels, codes.size())) return void(std::ranges::copy(bytes, codes.begin()));
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<std::uint8_t>(bytes[i % count] >> (i / count * 2) & 3U);
  }
}

void pack_parameters(std::span<const float> pairs, DType dtype, std::span<std::uint8_t> bytes) {
  const std::size_t size = size_of(dtype);
  OSCAR_CHECK(is_activation_dtype(dtype) && bytes.size() == pairs.size() * size);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const std::uint32_t bits = dtype == DType::kF32   ? std::bit_cast<std::uint32_t>(pairs[i])
                               : dtype == DType::kF16 ? f16_from_float(pairs[i])
                                                      : bf16_from_float(pairs[i]);
    for (std::size_t byte = 0; byte < size; ++byte) {
      bytes[i * size + byte] = static_cast<std::uint8_t>(bits >> (8 * byte));
    }
  }
}

void unpack_parameters(std::span<const std::uint8_t> bytes, DType dtype, std::span<float> pairs) {
  const std::size_t size = size_of(dtype);
  OSCAR_CHECK(is_activation_dtype(dtype) && bytes.size() == pairs.size() * size);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    std::uint32_t bits = 0;
    for (std::size_t byte = 0; byte < size; ++byte) bits |= std::uint32_t{bytes[i * size + byte]} << (8 * byte);
    pairs[i] = dtype == DType::kF32   ? std::bit_cast<float>(bits)
               : dtype == DType::kF16 ? float_from_f16(static_cast<std::uint16_t>(bits))
                                      : float_from_bf16(static_cast<std::uint16_t>(bits));
  }
}

namespace {

CodedRows coded_rows(const HistoryCodec& codec, int kv_head) {
  return CodedRows(codec.coded->at(static_cast<std::size_t>(kv_head)));
}

std::size_t groups_of(const RowCodec& codec, std::size_t dim) {
  return dim / static_cast<std::size_t>(checked_group_size(codec, static_cast<int>(dim)));
}

}  // namespace

std::size_t packed_row_bytes(const HistoryCodec& codec, int kv_head, std::size_t dim) {
  if (codec.coded != nullptr) return coded_rows(codec, kv_head).bytes();
  return code_bytes(codec.levels, dim) + 2 * groups_of(codec, dim) * size_of(codec.scale_dtype);
}

void encode_packed_row(const HistoryCodec& codec, int kv_head, std::span<const float> row,
                       std::span<std::uint8_t> bytes) {
  OSCAR_CHECK(bytes.size() == packed_row_bytes(codec, kv_head, row.size()));
  if (codec.coded != nullptr) return coded_rows(codec, kv_head).write(row, bytes.data());
  const QuantizedRows encoded = encode_row(codec.of_head(kv_head), row);
  std::vector<float> pairs;
  for (std::size_t group = 0; group < encoded.scale.size(); ++group) {
    pairs.insert(pairs.end(), {encoded.scale[group], encoded.zero[group]});
  }
  const std::size_t codes = code_bytes(codec.levels, row.size());
  pack_codes(encoded.codes, codec.levels, bytes.first(codes));
  pack_parameters(pairs, codec.scale_dtype, bytes.subspan(codes));
}

void decode_packed_row(const HistoryCodec& codec, int kv_head, std::span<const std::uint8_t> bytes,
                       std::span<float> row) {
  OSCAR_CHECK(bytes.size() == packed_row_bytes(codec, kv_head, row.size()));
  if (codec.coded != nullptr) return coded_rows(codec, kv_head).read(bytes.data(), row);
  const std::size_t codes = code_bytes(codec.levels, row.size()), groups = groups_of(codec, row.size());
  QuantizedRows encoded{std::vector<std::uint8_t>(row.size()), {}, {}};
  std::vector<float> pairs(2 * groups);
  unpack_codes(bytes.first(codes), codec.levels, encoded.codes);
  unpack_parameters(bytes.subspan(codes), codec.scale_dtype, pairs);
  for (std::size_t group = 0; group < groups; ++group) {
    encoded.scale.push_back(pairs[2 * group]);
    encoded.zero.push_back(pairs[2 * group + 1]);
  }
  decode_row(encoded, row);
}

}  // namespace oscar::reference
