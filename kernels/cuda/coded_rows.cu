// SPDX-License-Identifier: MIT
// One warp encodes a row with the operations of kernels/reference/coded_row.cpp: each is rounded once (compile without
// contraction), sums are added in the same order, and every bit is the same.
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "kernels/cuda/row_codec.hpp"
#include "kernels/cuda/warp.cuh"
#include "kernels/reference/coded_row.hpp"

namespace oscar::cuda {
namespace {

/// One channel of a format.
struct CodedChannel {
  float step, sigma;
  int levels;
};

/// One KV head's format: channels [0, wide) are of the wide class, [wide, stored) of the narrow one.
struct CodedHead {
  int wide, stored;
};

/// Formats as kernels read them.
struct CodedView {
  const CodedHead* heads;        // (heads)
  const CodedChannel* channels;  // (heads, dim)
  const float* scales;           // (256): what a scale byte stands for
  const float* least_scales;     // (256): the least scale that is rounded to a byte
};

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
  const int levels = channel.levels;
  const float place = value * (1.0F / channel.step) * (1.0F / scale) + static_cast<float>(levels / 2);
  if (!(place >= 0.0F)) return 0;
  return place >= static_cast<float>(levels) ? levels - 1 : static_cast<int>(place);
}

__device__ float value_of(int code, const CodedChannel& channel, float scale) {
  return (static_cast<float>(code) - 0.5F * static_cast<float>(channel.levels - 1)) * channel.step * scale;
}

/// What makes <y, gain y^> = <y, y>, held to 1/2 … 2.
__device__ float gain_of(float energy, float shared) {
  if (!(energy > 0.0F)) return 1.0F;
  const float gain = energy / shared;
  if (isnan(gain)) return 1.0F;  // both sums are beyond float32
  if (!(shared > 0.0F)) return 2.0F;
  return gain < 0.5F ? 0.5F : 2.0F < gain ? 2.0F : gain;
}

template <int kSlots>
__global__ void code_row(RowsView rows, CodedView formats, bool round, CodecOutput out) {
  const std::int64_t index = task_index() / kWarp;
  if (index >= rows.count()) return;
  const std::int64_t head = index / rows.rows_per_head;
  const CodedHead format = formats.heads[head];
  const CodedChannel* const channels = formats.channels + head * rows.dim;
  WarpRow<kSlots> row;
  row.dim = rows.dim;
  row.lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t first = rows.offset(index);
#pragma unroll
  for (int s = 0; s < kSlots; ++s) row.x[s] = row.channel(s) < rows.dim ? rows.value(first + row.channel(s)) : 0.0F;

  const int wide_byte = class_scale(row, formats, channels, 0, format.wide);
  const int narrow_byte = class_scale(row, formats, channels, format.wide, format.stored);
  const float wide_scale = formats.scales[wide_byte], narrow_scale = formats.scales[narrow_byte];
  int codes[kSlots];
  float decoded[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const int i = row.channel(s);
    const float scale = i < format.wide ? wide_scale : narrow_scale;
    codes[s] = i < format.stored ? code_of(row.x[s], channels[i], scale) : 0;
    decoded[s] = i < format.stored ? value_of(codes[s], channels[i], scale) : 0.0F;
  }
  const auto is_stored = [&](int s) { return row.channel(s) < format.stored; };
  const float energy = ordered_sum(row, [&](int s) { return is_stored(s) ? row.x[s] * row.x[s] : 0.0F; });
  const float shared = ordered_sum(row, [&](int s) { return is_stored(s) ? row.x[s] * decoded[s] : 0.0F; });
  const float gain = gain_of(energy, shared);
  const auto corrected = [&](bool exists, float scale) {
    return formats.scales[exists ? scale_byte(formats.least_scales, scale * gain) : 0];
  };
  const float wide = corrected(format.wide > 0, wide_scale);
  const float narrow = corrected(format.stored > format.wide, narrow_scale);
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const int i = row.channel(s);
    if (i >= rows.dim) continue;
    const float exact = is_stored(s) ? value_of(codes[s], channels[i], i < format.wide ? wide : narrow) : 0.0F;
    const float value = round ? nearest_bf16(exact) : exact;
    const std::int64_t at = index * rows.dim + i;
    if (out.decoded != nullptr) out.decoded[at] = value;
    if (out.decoded_f64 != nullptr) out.decoded_f64[at] = value;
  }
}

using CodeRow = void (*)(RowsView, CodedView, bool, CodecOutput);

/// The kernel whose warps have room for a row.
CodeRow kernel_for(int dim) {
  if (dim <= 64) return code_row<2>;
  if (dim <= 128) return code_row<4>;
  if (dim <= 256) return code_row<8>;
  if (dim <= 1024) return code_row<32>;
  throw UsageError("rows of " + std::to_string(dim) + " values are longer than the GPU's coded cache takes", "--device",
                   "use --device cpu");
}

}  // namespace

void code_rows(const Context& context, const RowsView& rows, const HistoryCodec& codec, Precision precision,
               const CodecOutput& out, int first_head) {
  OSCAR_CHECK(static_cast<std::int64_t>(codec.coded->size()) >= first_head + rows.heads);
  std::vector<CodedHead> heads;
  std::vector<CodedChannel> channels;
  for (std::int64_t h = 0; h < rows.heads; ++h) {
    const CodedFormat& format = (*codec.coded)[static_cast<std::size_t>(first_head + h)];
    reference::require_valid(format);
    OSCAR_CHECK(format.levels.size() == static_cast<std::size_t>(rows.dim));
    CodedHead& head = heads.emplace_back(CodedHead{});
    for (std::size_t i = 0; i < format.levels.size(); ++i) {
      channels.push_back({format.step[i], format.sigma[i], format.levels[i]});
      head.wide += format.levels[i] >= reference::kWideLevels ? 1 : 0;
      head.stored += format.levels[i] > 1 ? 1 : 0;
    }
  }
  std::vector<float> scales;
  for (int byte = 0; byte < 256; ++byte) scales.push_back(reference::coded_scale(byte));
  for (int byte = 0; byte < 256; ++byte) scales.push_back(reference::least_coded_scale(byte));
  const CodeRow kernel = kernel_for(rows.dim);
  if (rows.count() == 0) return;
  const DeviceBuffer<CodedHead> device_heads(context, heads);
  const DeviceBuffer<CodedChannel> device_channels(context, channels);
  const DeviceBuffer<float> device_scales(context, scales);
  const CodedView formats{device_heads.data(), device_channels.data(), device_scales.data(),
                          device_scales.data() + 256};
  kernel<<<blocks_for(static_cast<std::size_t>(rows.count()) * kWarp), kThreads, 0, context.stream()>>>(
      rows, formats, precision == Precision::kServing, out);
  OSCAR_CUDA_LAUNCHED("code_row");
}

}  // namespace oscar::cuda
