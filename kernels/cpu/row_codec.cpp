// SPDX-License-Identifier: MIT
// The row codec, packed histories, and quantize(): many rows through a codec and back, in parallel.
#include "kernels/cpu/row_codec.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "base/threads.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cpu/ops.hpp"
#include "kernels/reference/coded_row.hpp"
#include "kernels/reference/row_codec.hpp"

namespace oscar::cpu {

namespace {

/// The affine map back of one group: x^ = (code - zero) scale.
struct GroupParams {
  float scale, zero;
};

// These encode one group into as many codes as it has values: minmax, and lloyd-max, which has 4 levels.

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

/// Encodes rows of one size, one after the other.
class RowEncoder {
 public:
  RowEncoder(int head_dim, int group_size)
      : group_size_(static_cast<std::size_t>(group_size)),
        clipped_(static_cast<std::size_t>(head_dim)),
        codes_(clipped_.size()),
        parameters_(2 * (clipped_.size() / group_size_)) {}

  /// Encodes a row of head_dim values; its codes and parameters stay until the next one.
  void encode(std::span<const float> row, const RowCodec& codec) {
    std::span<const float> source = row;
    if (codec.clip_ratio > 0) {
      const float threshold = clip_threshold(row, codec.clip_ratio, clipped_);
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

  [[nodiscard]] std::span<const std::uint8_t> codes() const { return codes_; }
  /// Scale and zero of each group as they are stored, (groups, 2).
  [[nodiscard]] std::span<const float> parameters() const { return parameters_; }

 private:
  std::size_t group_size_;
  std::vector<float> clipped_;
  std::vector<std::uint8_t> codes_;
  std::vector<float> parameters_;
};

}  // namespace

float clip_threshold(std::span<const float> row, double ratio, std::span<float> scratch) {
  const int size = static_cast<int>(row.size());
  const int rank = clip_rank(ratio, size);
  std::transform(row.begin(), row.end(), scratch.begin(), [](float x) { return std::abs(x); });
  std::nth_element(scratch.begin(), scratch.begin() + rank, scratch.begin() + size);
  return scratch[static_cast<std::size_t>(rank)];
}

namespace {

/// Decodes the codes of a row by scale and zero of its groups, (groups, 2).
void decode_row(std::span<const std::uint8_t> codes, std::span<const float> parameters, std::span<float> row) {
  const std::size_t groups = parameters.size() / 2, size = row.size() / groups;
  for (std::size_t group = 0; group < groups; ++group) {
    const float scale = parameters[2 * group], zero = parameters[2 * group + 1];
    for (std::size_t i = group * size; i < (group + 1) * size; ++i)
      row[i] = (static_cast<float>(codes[i]) - zero) * scale;
  }
}

constexpr std::size_t kRowsPerTask = 1024;

/// What decoding a row needs beside it: as many codes and parameters as one has.
struct Scratch {
  std::vector<std::uint8_t> codes;
  std::vector<float> pairs;  // scale and zero of each group
};

}  // namespace

PackedHistory::PackedHistory(std::span<const float> rows, int heads, int dim, HistoryCodec codec)
    : codec_(std::move(codec)),
      tokens_(static_cast<std::int64_t>(rows.size()) / heads / dim),
      dim_(dim),
      group_size_(codec_.coded == nullptr ? checked_group_size(codec_, dim) : dim),
      heads_(static_cast<std::size_t>(heads)) {
  check_heads(codec_, heads);
  if (codec_.coded != nullptr) {
    for (const CodedFormat& format : *codec_.coded) coded_.emplace_back(format);
  }
  for (std::size_t head = 0; head < heads_.size(); ++head) {
    heads_[head].row_bytes = reference::packed_row_bytes(codec_, static_cast<int>(head), static_cast<std::size_t>(dim));
    heads_[head].bytes.resize(static_cast<std::size_t>(tokens_) * heads_[head].row_bytes);
  }
  const std::size_t num_rows = static_cast<std::size_t>(tokens_) * heads_.size();
  OSCAR_CHECK(rows.size() == num_rows * static_cast<std::size_t>(dim));
  parallel_for((num_rows + kRowsPerTask - 1) / kRowsPerTask, [&](std::size_t task) {
    pack(task * kRowsPerTask, std::min((task + 1) * kRowsPerTask, num_rows), rows);
  });
}

void PackedHistory::pack(std::size_t begin, std::size_t end, std::span<const float> rows) {
  const auto dim = static_cast<std::size_t>(dim_);
  std::vector<RowCodec> codecs;
  for (int head = 0; head < heads(); ++head) codecs.push_back(codec_.of_head(head));
  RowEncoder encoder(dim_, group_size_);
  for (std::size_t row = begin; row < end; ++row) {
    const std::size_t head = row % heads_.size(), token = row / heads_.size();
    const std::span<const float> values = rows.subspan(row * dim, dim);
    const std::span<std::uint8_t> bytes =
        std::span(heads_[head].bytes).subspan(token * heads_[head].row_bytes, heads_[head].row_bytes);
    if (!coded_.empty()) {
      coded_[head].write(values, bytes.data());
      continue;
    }
    encoder.encode(values, codecs[head]);
    const std::size_t codes = reference::code_bytes(codec_.levels, dim);
    reference::pack_codes(encoder.codes(), codec_.levels, bytes.first(codes));
    reference::pack_parameters(encoder.parameters(), codec_.scale_dtype, bytes.subspan(codes));
  }
}

void PackedHistory::decode(std::int64_t token, int head, Precision precision, std::span<float> row) const {
  const Head& own = heads_[static_cast<std::size_t>(head)];
  const auto bytes = std::span(own.bytes).subspan(static_cast<std::size_t>(token) * own.row_bytes, own.row_bytes);
  if (!coded_.empty()) {
    coded_[static_cast<std::size_t>(head)].read(bytes.data(), row);
  } else {
    thread_local Scratch scratch;
    const auto group_size = static_cast<std::size_t>(group_size_);
    scratch.codes.resize(row.size()), scratch.pairs.resize(2 * row.size() / group_size);
    const std::size_t codes = reference::code_bytes(codec_.levels, row.size());
    reference::unpack_codes(bytes.first(codes), codec_.levels, scratch.codes);
    reference::unpack_parameters(bytes.subspan(codes), codec_.scale_dtype, scratch.pairs);
    decode_row(scratch.codes, scratch.pairs, row);
  }
  if (precision == Precision::kServing) round_to_bf16(row);
}

namespace {

/// Returns the codec of each head, or one if all heads have the same.
std::vector<RowCodec> codecs_of_heads(const HistoryCodec& codec) {
  std::vector<RowCodec> codecs(std::max<std::size_t>(codec.head_clip_ratios.size(), 1));
  for (std::size_t head = 0; head < codecs.size(); ++head) codecs[head] = codec.of_head(static_cast<int>(head));
  return codecs;
}

}  // namespace

void quantize(std::span<const float> rows, int head_dim, const HistoryCodec& codec, Precision precision,
              std::span<float> decoded) {
  const bool coded = codec.coded != nullptr;
  const int group_size = coded ? head_dim : checked_group_size(codec, head_dim);
  const auto dim = static_cast<std::size_t>(head_dim);
  const std::size_t num_rows = rows.size() / dim;
  OSCAR_CHECK(num_rows * dim == rows.size() && decoded.size() == rows.size());
  if (coded) std::ranges::for_each(*codec.coded, reference::require_valid);
  const std::vector<RowCodec> of_head = codecs_of_heads(codec);
  parallel_for((num_rows + kRowsPerTask - 1) / kRowsPerTask, [&](std::size_t task) {
    RowEncoder encoder(head_dim, group_size);
    const std::size_t end = std::min(num_rows, (task + 1) * kRowsPerTask);
    for (std::size_t row = task * kRowsPerTask; row < end; ++row) {
      const std::span<const float> x = rows.subspan(row * dim, dim);
      const std::span<float> own = decoded.subspan(row * dim, dim);
      if (coded) {
        const CodedFormat& format = (*codec.coded)[row % codec.coded->size()];
        reference::coded_values(format, reference::coded_codes(format, x), own);
      } else {
        encoder.encode(x, of_head[row % of_head.size()]);
        decode_row(encoder.codes(), encoder.parameters(), own);
      }
      if (precision == Precision::kServing) round_to_bf16(own);
    }
  });
}

}  // namespace oscar::cpu
