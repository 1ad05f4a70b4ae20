// SPDX-License-Identifier: MIT
// quantize(): many rows through a codec and back, in parallel.
#include <algorithm>
#include <vector>

#include "base/check.hpp"
#include "base/threads.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cpu/ops.hpp"
#include "kernels/cpu/row_codec.hpp"
#include "kernels/reference/coded_row.hpp"

namespace oscar::cpu {
namespace {

constexpr std::int64_t kRowsPerTask = 1024;

/// Returns the codec of each head, or one if all heads have the same.
std::vector<RowCodec> codecs_of_heads(const HistoryCodec& codec) {
  std::vector<RowCodec> codecs(std::max<std::size_t>(codec.head_clip_ratios.size(), 1));
  for (std::size_t head = 0; head < codecs.size(); ++head) codecs[head] = codec.of_head(static_cast<int>(head));
  return codecs;
}

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
    RowEncoder encoder(head_dim, group_size);
    const std::size_t end = std::min(num_rows, (task + 1) * kRowsPerTask);
    for (std::size_t row = task * kRowsPerTask; row < end; ++row) {
      const std::span<float> own = decoded.subspan(row * dim, dim);
      encoder.encode(rows.subspan(row * dim, dim), of_head[row % of_head.size()]);
      decode_row(encoder.codes(), encoder.parameters(), own);
      if (precision == Precision::kServing) round_to_bf16(own);
      if (out == nullptr) continue;
      std::ranges::copy(encoder.codes(), out->codes.begin() + static_cast<std::ptrdiff_t>(row * dim));
      for (std::size_t group = 0; group < groups; ++group) {
        out->scale[row * groups + group] = encoder.parameters()[2 * group];
        out->zero[row * groups + group] = encoder.parameters()[2 * group + 1];
      }
    }
  });
}

}  // namespace oscar::cpu
