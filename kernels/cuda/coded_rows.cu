// SPDX-License-Identifier: MIT
// One warp packs a row with the operations of kernels/reference/coded_row.cpp: each is rounded once (compile without
// contraction), sums are added in the same order, and every bit is the same.
#include <bit>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "kernels/cuda/coded_decode.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/reference/coded_row.hpp"

namespace oscar::cuda {
namespace {

/// The sum of term(slot) over the channels of a row, in the order that coded_row.hpp defines; in all lanes.
template <int kSlots, class Term>
__device__ float ordered_sum(const WarpRow<kSlots>& row, const Term& term) {
  float sum = 0.0F;
#pragma unroll
  for (int s = 0; s < kSlots; ++s) sum += row.channel(s) < row.dim ? term(s) : 0.0F;
  for (int half = kWarp / 2; half > 0; half /= 2) sum += __shfl_down_sync(kAllLanes, sum, half);
  return __shfl_sync(kAllLanes, sum, 0);
}

/// The last byte whose least scale is not above; 0 for what is no number.
__device__ int scale_byte(const float* least_scales, float scale) {
  int low = 0, high = 255;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (scale >= least_scales[middle]) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

template <int kSlots>
__device__ int class_scale(const WarpRow<kSlots>& row, const CodedView& formats, const CodedChannel* channels,
                           int begin, int end) {
  if (begin == end) return 0;
  const float sum = ordered_sum(row, [&](int s) {
    const int i = row.channel(s);
    if (i < begin || i >= end) return 0.0F;
    const float ratio = row.x[s] * (1.0F / channels[i].sigma);
    return ratio * ratio;
  });
  return scale_byte(formats.least_scales, sqrtf(sum / static_cast<float>(end - begin)));
}

__device__ int code_of(float value, const CodedChannel& channel, float scale) {
  const int levels = 1 << channel.bits;
  const float place = value * (1.0F / channel.step) * (1.0F / scale) + static_cast<float>(levels / 2);
  if (!(place >= 0.0F)) return 0;
  return place >= static_cast<float>(levels) ? levels - 1 : static_cast<int>(place);
}

/// What makes <y, gain y^> = <y, y>, held to 1/2 … 2.
__device__ float gain_of(float energy, float shared) {
  if (!(energy > 0.0F)) return 1.0F;
  const float gain = energy / shared;
  if (isnan(gain)) return 1.0F;  // both sums are beyond float32
  if (!(shared > 0.0F)) return 2.0F;
  return gain < 0.5F ? 0.5F : 2.0F < gain ? 2.0F : gain;
}

/// Writes the bytes of a slot's four blocks. Eight neighbouring lanes hold a block; each piece of its codes is gathered
/// from the lanes whose parts share a byte. A channel without bits writes nothing.
__device__ void store_codes(int code, int bits, int first_byte, int lane, std::uint8_t* row) {
  const int place = lane % kCodedBlockChannels;
#pragma unroll
  for (int piece = 8; piece > 0; piece /= 2) {
    const int part = (code >> (bits & (piece - 1)) & ((1 << piece) - 1)) << (piece * (place / piece));
    int byte = part;
#pragma unroll
    for (int other = piece; other < kCodedBlockChannels; other *= 2) byte |= __shfl_xor_sync(kAllLanes, byte, other);
    const int before = bits & ~(2 * piece - 1);
    if ((bits & piece) != 0 && place < piece) row[first_byte + before + place] = static_cast<std::uint8_t>(byte);
  }
}

template <int kSlots>
__global__ void encode_rows(RowsView rows, CodedView formats, std::uint8_t* bytes) {
  const std::int64_t index = task_index() / kWarp;
  if (index >= rows.count()) return;
  const std::int64_t head = index / rows.rows_per_head, row_of_head = index % rows.rows_per_head;
  const CodedHead format = formats.heads[head];
  const CodedChannel* const channels = formats.channels + head * formats.dim;
  WarpRow<kSlots> row;
  row.dim = rows.dim;
  row.lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t first = rows.offset(index);
#pragma unroll
  for (int s = 0; s < kSlots; ++s) row.x[s] = row.channel(s) < rows.dim ? rows.value(first + row.channel(s)) : 0.0F;

  const int wide_byte = class_scale(row, formats, channels, 0, format.wide);
  const int narrow_byte = class_scale(row, formats, channels, format.wide, format.stored);
  const float wide_scale = formats.scales[wide_byte], narrow_scale = formats.scales[narrow_byte];
  std::uint8_t* const out = bytes + formats.offset(head, row_of_head, rows.rows_per_head);
  float decoded[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const int i = row.channel(s);
    const bool is_stored = i < format.stored;
    const CodedChannel channel = is_stored ? channels[i] : CodedChannel{};
    const float scale = i < format.wide ? wide_scale : narrow_scale;
    const int code = is_stored ? code_of(row.x[s], channel, scale) : 0;
    decoded[s] = is_stored ? coded_value(code, channel, scale) : 0.0F;
    store_codes(code, channel.bits, channel.first_byte, row.lane, out);
  }
  const auto is_stored = [&](int s) { return row.channel(s) < format.stored; };
  const float energy = ordered_sum(row, [&](int s) { return is_stored(s) ? row.x[s] * row.x[s] : 0.0F; });
  const float shared = ordered_sum(row, [&](int s) { return is_stored(s) ? row.x[s] * decoded[s] : 0.0F; });
  if (row.lane != 0) return;
  const float gain = gain_of(energy, shared);
  const auto corrected = [&](float scale) {
    return static_cast<std::uint8_t>(scale_byte(formats.least_scales, scale * gain));
  };
  out[format.row_bytes - 2] = format.wide > 0 ? corrected(wide_scale) : 0;
  out[format.row_bytes - 1] = format.stored > format.wide ? corrected(narrow_scale) : 0;
}

using EncodeRows = void (*)(RowsView, CodedView, std::uint8_t*);

/// The kernel whose warps have room for a row.
EncodeRows kernel_for(int dim) {
  if (dim <= 64) return encode_rows<2>;
  if (dim <= 128) return encode_rows<4>;
  if (dim <= 256) return encode_rows<8>;
  if (dim <= 1024) return encode_rows<32>;
  throw UsageError("rows of " + std::to_string(dim) + " values are longer than the GPU's coded cache takes", "--device",
                   "use --device cpu");
}

/// One thread a channel. rows: (heads, rows_per_head).
__global__ void decode_rows(const std::uint8_t* bytes, CodedView formats, std::int64_t rows, std::int64_t rows_per_head,
                            bool round, CodecOutput out) {
  const std::int64_t i = task_index();
  if (i >= rows * formats.dim) return;
  const std::int64_t row = i / formats.dim, head = row / rows_per_head;
  const std::uint8_t* const packed = bytes + formats.offset(head, row % rows_per_head, rows_per_head);
  const float exact = decoded_channel(formats, head, packed, static_cast<int>(i % formats.dim));
  const float value = round ? nearest_bf16(exact) : exact;
  if (out.decoded != nullptr) out.decoded[i] = value;
  if (out.decoded_f64 != nullptr) out.decoded_f64[i] = value;
}

}  // namespace

CodedFormats::CodedFormats(const Context& context, std::span<const CodedFormat> formats, int dim) {
  std::vector<CodedHead> heads;
  std::vector<CodedChannel> channels;
  for (const CodedFormat& format : formats) {
    reference::require_valid(format);
    OSCAR_CHECK(format.levels.size() == static_cast<std::size_t>(dim));
    CodedHead& head = heads.emplace_back(CodedHead{0, 0, 0, bytes_per_token_});
    for (std::size_t i = 0; i < format.levels.size(); ++i) {
      const int bits = std::countr_zero(static_cast<unsigned>(format.levels[i]));
      channels.push_back({format.step[i], format.sigma[i], bits, head.row_bytes});
      head.wide += format.levels[i] >= reference::kWideLevels ? 1 : 0;
      head.stored += bits > 0 ? 1 : 0;
      if (i % reference::kCodedBlock == reference::kCodedBlock - 1) head.row_bytes += bits;
    }
    head.row_bytes += 2;
    OSCAR_CHECK(static_cast<std::size_t>(head.row_bytes) == reference::coded_row_bytes(format));
    bytes_per_token_ += head.row_bytes;
  }
  std::vector<float> scales;
  for (int byte = 0; byte < 256; ++byte) scales.push_back(reference::coded_scale(byte));
  for (int byte = 0; byte < 256; ++byte) scales.push_back(reference::least_coded_scale(byte));
  heads_ = DeviceBuffer<CodedHead>(context, heads);
  channels_ = DeviceBuffer<CodedChannel>(context, channels);
  scales_ = DeviceBuffer<float>(context, scales);
  view_ = {heads_.data(), channels_.data(), scales_.data(), scales_.data() + 256, dim};
}

std::span<const CodedFormat> formats_of(const HistoryCodec& codec, int first_head, std::int64_t heads) {
  const std::span<const CodedFormat> all(*codec.coded);
  OSCAR_CHECK(static_cast<std::int64_t>(all.size()) >= first_head + heads);
  return all.subspan(static_cast<std::size_t>(first_head), static_cast<std::size_t>(heads));
}

void encode_coded_rows(const Context& context, const RowsView& rows, const CodedFormats& formats, std::uint8_t* bytes) {
  OSCAR_CHECK(rows.dim == formats.view().dim);
  const EncodeRows kernel = kernel_for(rows.dim);
  if (rows.count() == 0) return;
  kernel<<<blocks_for(static_cast<std::size_t>(rows.count()) * kWarp), kThreads, 0, context.stream()>>>(
      rows, formats.view(), bytes);
  OSCAR_CUDA_LAUNCHED("encode_rows");
}

void pass_through_coded_rows(const Context& context, const RowsView& rows, const HistoryCodec& codec,
                             Precision precision, const CodecOutput& out, int first_head) {
  const CodedFormats formats(context, formats_of(codec, first_head, rows.heads), rows.dim);
  DeviceBuffer<std::uint8_t> own(
      context, out.codes != nullptr ? 0 : static_cast<std::size_t>(rows.rows_per_head * formats.bytes_per_token()));
  std::uint8_t* const bytes = out.codes != nullptr ? out.codes : own.data();
  encode_coded_rows(context, rows, formats, bytes);
  if (rows.count() == 0) return;
  decode_rows<<<blocks_for(static_cast<std::size_t>(rows.count() * rows.dim)), kThreads, 0, context.stream()>>>(
      bytes, formats.view(), rows.count(), rows.rows_per_head, precision == Precision::kServing, out);
  OSCAR_CUDA_LAUNCHED("decode_rows");
}

}  // namespace oscar::cuda
