// SPDX-License-Identifier: MIT
// The row codec, one thread a row, with the operations of kernels/cpu/row_codec.cpp in their order. Compiled without
// contraction of a*b+c, so that every bit is the same.
#include <cuda_bf16.h>

#include <bit>

#include "kernels/arguments.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/row_codec.hpp"

namespace oscar::cuda {
namespace {

struct Plan {
  int dim, group_size, levels;
  bool clip, bisect;
  int clip_rank;
  int bisections;  // floor(log2 dim)
  bool round_decoded;
};

struct Group {
  float scale, zero;
};

/// The clip_rank-th smallest magnitude: the largest number below which at most clip_rank of them lie, found bit by bit,
/// since floats that are not negative are ordered as their bits are.
__device__ float sorted_threshold(const float* row, const Plan& plan) {
  unsigned threshold = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const unsigned candidate = threshold | 1U << bit;
    int below = 0;
    for (int i = 0; i < plan.dim; ++i) below += __float_as_uint(fabsf(row[i])) < candidate ? 1 : 0;
    if (below <= plan.clip_rank) threshold = candidate;
  }
  return __uint_as_float(threshold);
}

__device__ float bisected_threshold(const float* row, const Plan& plan) {
  float low = 0.0F;
  float high = 0.0F;
  for (int i = 0; i < plan.dim; ++i) high = fmaxf(high, fabsf(row[i]));
  for (int step = 0; step < plan.bisections; ++step) {
    const float middle = (low + high) * 0.5F;
    int above = 0;
    for (int i = 0; i < plan.dim; ++i) above += fabsf(row[i]) > middle ? 1 : 0;
    (above > plan.dim - plan.clip_rank ? low : high) = middle;
  }
  return high;
}

__device__ float clamped(float x, float threshold) {
  return x < -threshold ? -threshold : threshold < x ? threshold : x;
}

/// With comparisons that keep the first of equals, as std::min and std::max do: it decides the sign of a zero.
__device__ Group fit_group(const float* values, const Plan& plan, float threshold) {
  float low = clamped(values[0], threshold);
  float high = low;
  for (int i = 0; i < plan.group_size; ++i) {
    const float x = clamped(values[i], threshold);
    low = x < low ? x : low;
    high = high < x ? x : high;
  }
  const float range = high - low;
  const float scale = (range < 1e-8F ? 1e-8F : range) / static_cast<float>(plan.levels - 1);
  return {scale, -low / scale};
}

__device__ std::uint8_t encode(float x, Group group, float highest_code) {
  const float position = x / group.scale + group.zero + 0.5F;
  // Rounding can push the ends past the code range; a group of equal huge values makes the position NaN.
  return static_cast<std::uint8_t>(position > 0.0F ? (highest_code < position ? highest_code : position) : 0.0F);
}

__global__ void quantize_row(const float* rows, std::int64_t num_rows, Plan plan, float* decoded, DeviceCodes out) {
  const std::int64_t index = task_index();
  if (index >= num_rows) return;
  const float* row = rows + index * plan.dim;
  float threshold = INFINITY;
  if (plan.clip) threshold = plan.bisect ? bisected_threshold(row, plan) : sorted_threshold(row, plan);
  const int groups = plan.dim / plan.group_size;
  for (int g = 0; g < groups; ++g) {
    const std::int64_t first = index * plan.dim + g * plan.group_size;
    const Group group = fit_group(rows + first, plan, threshold);
    for (std::int64_t i = first; i < first + plan.group_size; ++i) {
      const std::uint8_t code = encode(clamped(rows[i], threshold), group, static_cast<float>(plan.levels - 1));
      const float value = (static_cast<float>(code) - group.zero) * group.scale;
      decoded[i] = plan.round_decoded ? __bfloat162float(__float2bfloat16_rn(value)) : value;
      if (out.codes != nullptr) out.codes[i] = code;
    }
    if (out.scale != nullptr) out.scale[index * groups + g] = group.scale;
    if (out.zero != nullptr) out.zero[index * groups + g] = group.zero;
  }
}

}  // namespace

void quantize_rows(const Context& context, const DeviceBuffer<float>& rows, int head_dim, const RowCodec& codec,
                   Precision precision, DeviceBuffer<float>& decoded, DeviceCodes out) {
  if (rows.size() == 0) return;
  const Plan plan{.dim = head_dim,
                  .group_size = checked_group_size(codec, head_dim),
                  .levels = codec.levels,
                  .clip = codec.clip_ratio > 0,
                  .bisect = codec.clip_search == ClipSearch::kBisect,
                  .clip_rank = clip_rank(codec.clip_ratio, head_dim),
                  .bisections = static_cast<int>(std::bit_width(static_cast<unsigned>(head_dim))) - 1,
                  .round_decoded = precision == Precision::kServing};
  const std::size_t count = rows.size() / static_cast<std::size_t>(head_dim);
  quantize_row<<<blocks_for(count), kThreads, 0, context.stream()>>>(rows.data(), static_cast<std::int64_t>(count),
                                                                     plan, decoded.data(), out);
  OSCAR_CUDA_LAUNCHED("quantize_row");
}

void quantize(const Context& context, std::span<const float> rows, int head_dim, const RowCodec& codec,
              Precision precision, std::span<float> decoded, QuantizedRows* out) {
  constexpr std::size_t kChunkRows = std::size_t{1} << 16;
  const auto dim = static_cast<std::size_t>(head_dim);
  const std::size_t groups = dim / static_cast<std::size_t>(checked_group_size(codec, head_dim));
  const std::size_t num_rows = rows.size() / dim;
  OSCAR_CHECK(num_rows * dim == rows.size() && decoded.size() == rows.size());
  if (out != nullptr) {
    out->codes.resize(rows.size());
    out->scale.resize(num_rows * groups);
    out->zero.resize(num_rows * groups);
  }
  for (std::size_t first = 0; first < num_rows; first += kChunkRows) {
    const std::size_t count = std::min(kChunkRows, num_rows - first);
    const DeviceBuffer<float> device_rows(context, rows.subspan(first * dim, count * dim));
    DeviceBuffer<float> device_decoded(context, count * dim);
    if (out == nullptr) {
      quantize_rows(context, device_rows, head_dim, codec, precision, device_decoded, {});
    } else {
      DeviceBuffer<std::uint8_t> codes(context, count * dim);
      DeviceBuffer<float> scale(context, count * groups);
      DeviceBuffer<float> zero(context, count * groups);
      quantize_rows(context, device_rows, head_dim, codec, precision, device_decoded,
                    {codes.data(), scale.data(), zero.data()});
      codes.download(context, std::span(out->codes).subspan(first * dim, count * dim));
      scale.download(context, std::span(out->scale).subspan(first * groups, count * groups));
      zero.download(context, std::span(out->zero).subspan(first * groups, count * groups));
    }
    device_decoded.download(context, decoded.subspan(first * dim, count * dim));
  }
}

}  // namespace oscar::cuda
