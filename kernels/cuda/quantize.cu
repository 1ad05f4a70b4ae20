// SPDX-License-Identifier: MIT
// The row codec, one warp a row, with the operations of kernels/cpu/row_codec.cpp: each is rounded once (compile
// without contraction), and every bit is the same.
#include <algorithm>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cuda/cache_format.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/row_codec.hpp"
#include "kernels/cuda/warp.cuh"

namespace oscar::cuda {

// Grid::kLloydMax of one group of a row, one warp: the operations of encode_group_lloyd_max() in
// kernels/cpu/row_codec.cpp in float64, each rounded once (compile without contraction). Only for .cu files.

template <int kSlots>
class LloydMaxGroup {
 public:
  explicit __device__ LloydMaxGroup(const WarpGroup<kSlots>& group) : group_(group) {}

  /// The group's parameters, in all lanes; code(s) is afterwards that of a lane's slot.
  __device__ GroupParams fit() {
    const auto size = static_cast<double>(group_.size());
    mean_ = group_.sum([&](int s) { return group_.x(s); }) / size;
    const auto centred = [&](int s) { return group_.x(s) - mean_; };
    const double variance = group_.sum([&](int s) { return centred(s) * centred(s); }) / size;
    deviation_ = sqrt(variance + 1e-8);
    const double scale = kLloydMaxStep * deviation_;
    return {static_cast<float>(scale), static_cast<float>(1.5 - mean_ / scale)};
  }

  [[nodiscard]] __device__ int code(int slot) const {
    const double standard = (group_.x(slot) - mean_) / deviation_;
    return (standard >= -kLloydMaxThreshold ? 1 : 0) + (standard >= 0 ? 1 : 0) +
           (standard >= kLloydMaxThreshold ? 1 : 0);
  }

 private:
  const WarpGroup<kSlots>& group_;
  double mean_ = 0, deviation_ = 1;
};

namespace {

struct Plan {
  int group_size;
  float highest_code;
  int clip_rank;          // kNoClip: none
  const int* head_ranks;  // of the view's heads, in place of clip_rank; null: one for all
  Grid grid;
  DType scale_dtype;
};
struct Plans {
  Plan plan[kMaxCodecs];
};
constexpr int kNoClip = -1;

/// The rank-th smallest magnitude: the largest number below which at most `rank` of them lie, found bit by bit, since
/// floats that are not negative are ordered as their bits are.
template <int kSlots>
__device__ float sorted_threshold(const WarpRow<kSlots>& row, int rank) {
  unsigned threshold = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const unsigned candidate = threshold | 1U << bit;
    unsigned below = 0;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      below += row.channel(s) < row.dim && __float_as_uint(fabsf(row.x[s])) < candidate ? 1 : 0;
    }
    if (__reduce_add_sync(kAllLanes, below) <= static_cast<unsigned>(rank)) threshold = candidate;
  }
  return __uint_as_float(threshold);
}

template <int kSlots>
__device__ void clip(WarpRow<kSlots>& row, int rank) {
  const float threshold = sorted_threshold(row, rank);
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const float x = row.x[s];
    row.x[s] = x < -threshold ? -threshold : threshold < x ? threshold : x;
  }
}

/// Scale and zero, the same in every lane.
template <int kSlots>
__device__ GroupParams fit_group(const WarpGroup<kSlots>& group, float highest_code) {
  float low = INFINITY;
  float high = -INFINITY;
  unsigned first_zero = ~0U;  // 2 * channel + sign bit
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    if (!group.has(s)) continue;
    const float x = group.row.x[s];
    low = fminf(low, x);
    high = fmaxf(high, x);
    if (x == 0.0F) first_zero = min(first_zero, 2U * group.row.channel(s) + (signbit(x) ? 1U : 0U));
  }
  low = warp_min(low);
  high = warp_max(high);
  // Of several zeros the CPU keeps the first, whose sign shows in `zero`.
  first_zero = __reduce_min_sync(kAllLanes, first_zero);
  if (low == 0.0F) low = first_zero % 2 == 1 ? -0.0F : 0.0F;
  const float range = high - low;
  const float scale = (range < 1e-8F ? 1e-8F : range) / highest_code;
  return {scale, -low / scale};
}

__device__ std::uint8_t encode(float x, GroupParams group, float highest_code) {
  const float position = x / group.scale + group.zero + 0.5F;
  // Rounding can push the ends past the code range; a group of equal huge values makes the position NaN.
  return static_cast<std::uint8_t>(position > 0.0F ? (highest_code < position ? highest_code : position) : 0.0F);
}

/// As readers find them.
__device__ GroupParams stored(GroupParams params, DType dtype) {
  const auto rounded = [dtype](float value) {
    if (dtype == DType::kBF16) return nearest_bf16(value);
    if (dtype == DType::kF16) {
      const float finite = value < -kLargestF16 ? -kLargestF16 : kLargestF16 < value ? kLargestF16 : value;
      return __half2float(__float2half_rn(finite));
    }
    return value;
  };
  return {rounded(params.scale), rounded(params.zero)};
}

__device__ void store(const CodecOutput& out, std::int64_t i, std::uint8_t code, GroupParams group, bool round) {
  const float exact = decoded_value(code, group);
  const float value = round ? nearest_bf16(exact) : exact;
  if (out.decoded != nullptr) out.decoded[i] = value;
  if (out.decoded_f64 != nullptr) out.decoded_f64[i] = value;
}

/// Encodes one group; out_row: where its row begins in `out`.
/// kDouble: as in quantize_row().
template <int kSlots, bool kDouble>
__device__ void quantize_group(const WarpGroup<kSlots>& group, const Plan& plan, bool round, std::int64_t out_row,
                               const CodecOutput& out) {
  const bool lloyd = kDouble && plan.grid == Grid::kLloydMax;
  LloydMaxGroup<kSlots> standard(group);
  const GroupParams exact = lloyd ? standard.fit() : fit_group(group, plan.highest_code);
  const GroupParams read = stored(exact, plan.scale_dtype);
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    if (!group.has(s)) continue;
    const auto code =
        lloyd ? static_cast<std::uint8_t>(standard.code(s)) : encode(group.row.x[s], exact, plan.highest_code);
    store(out, out_row + group.row.channel(s), code, read, round);
  }
}

/// blockIdx.y: the codec. kDouble: some of them have a grid that is computed in fp64.
template <int kSlots, bool kDouble>
__global__ void quantize_row(RowsView rows, const __grid_constant__ Plans plans, bool round, CodecOutput out) {
  const std::int64_t index = task_index() / kWarp;
  if (index >= rows.count()) return;
  const Plan& plan = plans.plan[blockIdx.y];
  WarpRow<kSlots> row;
  row.dim = rows.dim;
  row.lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t first = rows.offset(index);
#pragma unroll
  for (int s = 0; s < kSlots; ++s) row.x[s] = row.channel(s) < rows.dim ? rows.value(first + row.channel(s)) : 0.0F;
  const int rank = plan.head_ranks == nullptr ? plan.clip_rank : plan.head_ranks[index / rows.rows_per_head];
  if (rank != kNoClip) clip(row, rank);

  const std::int64_t out_index = blockIdx.y * rows.count() + index;
  const int groups = rows.dim / plan.group_size;
  for (int g = 0; g < groups; ++g) {
    const WarpGroup<kSlots> group{row, g * plan.group_size, (g + 1) * plan.group_size};
    quantize_group<kSlots, kDouble>(group, plan, round, out_index * rows.dim, out);
  }
}

int rank_of(double clip_ratio, int dim) { return clip_ratio > 0 ? clip_rank(clip_ratio, dim) : kNoClip; }

Plan plan_of(const RowCodec& codec, int dim) {
  return {.group_size = checked_group_size(codec, dim),
          .highest_code = static_cast<float>(codec.levels - 1),
          .clip_rank = rank_of(codec.clip_ratio, dim),
          .head_ranks = nullptr,
          .grid = codec.grid,
          .scale_dtype = codec.scale_dtype};
}

/// The ranks of the view's heads, where they have their own, on the GPU; plans point to them.
DeviceBuffer<int> upload_head_ranks(const Context& context, const RowsView& rows, std::span<const HistoryCodec> codecs,
                                    int first_head, Plans& plans) {
  std::vector<int> ranks;
  std::vector<std::size_t> begin(codecs.size());
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    begin[i] = ranks.size();
    if (codecs[i].head_clip_ratios.empty()) continue;
    for (int head = 0; head < rows.heads; ++head) {
      ranks.push_back(rank_of(codecs[i].of_head(first_head + head).clip_ratio, rows.dim));
    }
  }
  DeviceBuffer<int> buffer(context, ranks.size());
  buffer.upload(context, ranks);
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    if (!codecs[i].head_clip_ratios.empty()) plans.plan[i].head_ranks = buffer.data() + begin[i];
  }
  return buffer;
}

using QuantizeRow = void (*)(RowsView, Plans, bool, CodecOutput);

/// The kernel whose warps have room for a row.
template <bool kDouble>
QuantizeRow kernel_for(int dim) {
  if (dim <= 64) return quantize_row<2, kDouble>;
  if (dim <= 96) return quantize_row<3, kDouble>;
  if (dim <= 128) return quantize_row<4, kDouble>;
  if (dim <= 256) return quantize_row<8, kDouble>;
  if (dim <= 1024) return quantize_row<32, kDouble>;
  throw UsageError("rows of " + std::to_string(dim) + " values are longer than the GPU's codec takes", "--device",
                   "use --device cpu");
}

/// Rows of the coded cache have kernels of their own, which take one codec.
void one_after_the_other(const Context& context, const RowsView& rows, std::span<const HistoryCodec> codecs,
                         Precision precision, CodecOutput out, int first_head) {
  const std::int64_t values = rows.count() * rows.dim;
  for (const HistoryCodec& codec : codecs) {
    if (codec.coded != nullptr) {
      code_rows(context, rows, codec, precision, out, first_head);
    } else {
      quantize_rows(context, rows, {&codec, 1}, precision, out, first_head);
    }
    if (out.decoded != nullptr) out.decoded += values;
    if (out.decoded_f64 != nullptr) out.decoded_f64 += values;
  }
}

}  // namespace

void quantize_rows(const Context& context, const RowsView& rows, std::span<const HistoryCodec> codecs,
                   Precision precision, const CodecOutput& out, int first_head) {
  if (std::any_of(codecs.begin(), codecs.end(), [](const HistoryCodec& codec) { return codec.coded != nullptr; })) {
    return one_after_the_other(context, rows, codecs, precision, out, first_head);
  }
  std::vector<Plan> all;
  for (const HistoryCodec& codec : codecs) all.push_back(plan_of(codec, rows.dim));
  const bool in_double = std::any_of(all.begin(), all.end(), [](const Plan& p) { return p.grid != Grid::kMinMax; });
  const QuantizeRow kernel = in_double ? kernel_for<true>(rows.dim) : kernel_for<false>(rows.dim);
  OSCAR_CHECK(all.size() <= kMaxCodecs);
  if (rows.count() == 0 || all.empty()) return;
  Plans plans{};
  std::copy(all.begin(), all.end(), plans.plan);
  const DeviceBuffer<int> head_ranks = upload_head_ranks(context, rows, codecs, first_head, plans);
  const dim3 grid(blocks_for(static_cast<std::size_t>(rows.count()) * kWarp), static_cast<unsigned>(all.size()));
  kernel<<<grid, kThreads, 0, context.stream()>>>(rows, plans, precision == Precision::kServing, out);
  OSCAR_CUDA_LAUNCHED("quantize_row");
}

void quantize(const Context& context, std::span<const float> rows, int head_dim, const HistoryCodec& codec,
              Precision precision, std::span<float> decoded) {
  constexpr std::size_t kChunkRows = std::size_t{1} << 16;
  const bool coded = codec.coded != nullptr;
  OSCAR_CHECK(codec.head_clip_ratios.empty() && (!coded || codec.coded->size() == 1));
  const auto dim = static_cast<std::size_t>(head_dim);
  const std::size_t num_rows = rows.size() / dim;
  OSCAR_CHECK(num_rows * dim == rows.size() && decoded.size() == rows.size());
  for (std::size_t first = 0; first < num_rows; first += kChunkRows) {
    const std::size_t count = std::min(kChunkRows, num_rows - first);
    const DeviceBuffer<float> device_rows(context, rows.subspan(first * dim, count * dim));
    DeviceBuffer<float> device_decoded(context, count * dim);
    quantize_rows(context, dense_rows(device_rows.data(), static_cast<std::int64_t>(count), head_dim), {&codec, 1},
                  precision, {.decoded = device_decoded.data()});
    device_decoded.download(context, decoded.subspan(first * dim, count * dim));
  }
}

}  // namespace oscar::cuda
