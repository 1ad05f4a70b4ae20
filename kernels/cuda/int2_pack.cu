// SPDX-License-Identifier: MIT
// oscar_int2_pack(): rotation, codec and packing in one pass. Rotated rows are rounded to bfloat16, as servers store
// them; from there grids and codes are those of kernels/cpu/row_codec.cpp, to the bit (compiled without contraction).
// A warp takes 16 rows of a head at a time; the next 16 are copied to shared memory while it encodes.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "kernels/arguments.hpp"
#include "kernels/cuda/int2_arguments.hpp"
#include "kernels/cuda/int2_launch.cuh"
#include "kernels/cuda/int2_pack_clip.cuh"
#include "kernels/cuda/int2_pack_rotate.cuh"
#include "kernels/cuda/int2_pack_tile.cuh"
#include "oscar/int2_attention.h"

namespace oscar::cuda {
namespace {

__device__ __forceinline__ void store_param(unsigned char* to, oscar_dtype type, const GroupGrid& grid) {
  if (type == OSCAR_FLOAT32) {
    *reinterpret_cast<float2*>(to) = {grid.scale, grid.zero};
  } else {
    *reinterpret_cast<unsigned*>(to) =
        type == OSCAR_FLOAT16 ? pack_f16(grid.scale, grid.zero) : pack_bf16(grid.scale, grid.zero);
  }
}

/// The grids of 16 rows, group by group.
template <int kDim, int kGroups>
class MinMax {
 public:
  __device__ __forceinline__ MinMax(const PackParams& p, const RowPair<kDim>& rows, int head)
      : rows_(rows), ends_(rows) {
    const int rank = p.args.clip_ranks == nullptr ? p.clip_rank : __ldg(p.args.clip_ranks + head);
    if (rank < 0) return;
    unsigned highest[2];
    ends_.highest(highest);
    Thresholds<kDim>(highest, rank).find(rows, thresholds_);
  }
  __device__ __forceinline__ void encode(int group, GroupGrid& grid, PackedCodes<kDim> (&codes)[2]) const {
    encode_min_max<kDim, kGroups>(rows_, ends_, group, thresholds_, grid, codes);
  }

 private:
  const RowPair<kDim>& rows_;
  Ends<kDim, kGroups> ends_;
  unsigned thresholds_[2] = {0x7f80U, 0x7f80U};  // infinity
};

/// Encodes 16 rows and writes them to their slots, which are those of rows g and g + 8.
template <int kDim, int kGroups>
__device__ __forceinline__ void write_rows(const PackParams& p, const RowPair<kDim>& rows, int head,
                                           const int (&numbers)[2]) {
  const MinMax<kDim, kGroups> encoder(p, rows, head);
  PackedCodes<kDim> codes[2];
  const int param_bytes = p.args.param_dtype == OSCAR_FLOAT32 ? 8 : 4, t = static_cast<int>(threadIdx.x) % 4;
  const Slot slots[2] = {Slot(p, numbers[0]), Slot(p, numbers[1])};
  const Slot own = t < 2 ? slots[0] : slots[1];  // of the row whose grids this lane has
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    GroupGrid grid;
    encoder.encode(group, grid, codes);
    if (own.page < 0 || t % 2 != group % 2) continue;
    store_param(own.in(p.args.params, head) + group * param_bytes, p.args.param_dtype, grid);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (slots[r].page >= 0) codes[r].store(slots[r].in(p.args.codes, head));
  }
}

/// A block's shared memory: the warps' rows, the rotation, the rows' slots.
template <int kDim, bool kRotate>
struct SharedPlaces {
  static constexpr int kRotation = kPackWarps * Tile<kDim>::kBytes;
  static constexpr int kSlots = kRotation + (kRotate ? static_cast<int>(SharedRotation<kDim>::kBytes) : 0);
  static constexpr int kBytes = kSlots + kPackWarps * kPackRows * static_cast<int>(sizeof(int));
};

/// Grid: (any number, num_kv_heads); blocks of a head share its tiles of kPackRows tokens.
template <int kDim, int kGroups, bool kRotate>
__global__ void __launch_bounds__(kPackWarps* kLanes, kDim <= 128 ? 2 : 1)
    int2_pack(const __grid_constant__ PackParams p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int head = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x) / kLanes, step = static_cast<int>(gridDim.x) * kPackWarps * kPackRows;
  const int in_group = warp % kGroupWarps * kPackRows;  // groups go by their first rows: their warps stay together
  using Shared = SharedPlaces<kDim, kRotate>;
  const Tile<kDim> tile(p, head, shared + warp * Tile<kDim>::kBytes,
                        reinterpret_cast<int*>(shared + Shared::kSlots) + warp * kPackRows);
  // Where rows do not come out even, half of every block is left with fewer, not half of the blocks.
  const int group = warp / kGroupWarps * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  int first = group * kGroupWarps * kPackRows + in_group;
  follow_previous_launch();
  if (first - in_group < p.args.num_tokens) tile.copy(first);
  const auto work = [&](const auto& take) {
    for (; first - in_group < p.args.num_tokens; first += step) {
      wait_for_copies<0>();
      __syncwarp();
      RowPair<kDim> rows;
      take(rows);
      const int slots[2] = {tile.slot(0, first), tile.slot(1, first)};
      __syncwarp();  // every lane has read its rows
      if (first - in_group + step < p.args.num_tokens) tile.copy(first + step);
      write_rows<kDim, kGroups>(p, rows, head, slots);
    }
  };
  if constexpr (kRotate) {
    const SharedRotation<kDim> rotation(p, head,
                                        static_cast<unsigned>(__cvta_generic_to_shared(shared + Shared::kRotation)));
    wait_for_copies<0>();
    rotation.publish();
    __syncthreads();
    work([&](RowPair<kDim>& rows) { rotation.apply(tile, rows); });
  } else {
    work([&](RowPair<kDim>& rows) { tile.load(rows); });
  }
}

template <int kDim, int kGroups, bool kRotate>
int launch(const PackParams& p, cudaStream_t stream) {
  constexpr int kShared = SharedPlaces<kDim, kRotate>::kBytes;
  constexpr int kBlocks = kDim <= 128 ? 2 * 132 : 132;  // what an H100 holds at once
  const int heads = p.args.num_kv_heads, rows = kPackRows * kPackWarps, blocks = (p.args.num_tokens + rows - 1) / rows;
  const dim3 grid(static_cast<unsigned>(std::min(blocks, std::max(1, kBlocks / heads))), static_cast<unsigned>(heads));
  return launch_overlapping<int2_pack<kDim, kGroups, kRotate>>(p, grid, kPackWarps * kLanes, kShared, kShared, stream);
}

template <int kDim, int kGroups>
int launch_one(const PackParams& p, cudaStream_t stream) {
  return p.args.rotation != nullptr ? launch<kDim, kGroups, true>(p, stream) : launch<kDim, kGroups, false>(p, stream);
}

int launch_shape(const PackParams& p, cudaStream_t stream) {
  const int groups = p.args.head_dim / p.args.group_size;
  switch (p.args.head_dim) {
    case 64:
      return groups == 1 ? launch_one<64, 1>(p, stream) : launch_one<64, 2>(p, stream);
    case 128:
      return groups == 1   ? launch_one<128, 1>(p, stream)
             : groups == 2 ? launch_one<128, 2>(p, stream)
                           : launch_one<128, 4>(p, stream);
    default:
      return groups == 1   ? launch_one<256, 1>(p, stream)
             : groups == 4 ? launch_one<256, 4>(p, stream)
                           : launch_one<256, 8>(p, stream);
  }
}

const char* problem(const oscar_int2_pack_args& a) {
  if (a.num_tokens < 0 || a.num_kv_heads < 1 || a.num_kv_heads > 65535)
    return "num_tokens or num_kv_heads is out of range";
  if (const char* wrong = shape_problem(a.head_dim, a.group_size, a.param_dtype)) return wrong;
  if (a.page_size < 1) return "page_size must be positive";
  if (a.clip_ratio > 1 || std::isnan(a.clip_ratio)) return "clip_ratio must not exceed 1";
  if (a.x == nullptr || a.slots == nullptr || a.codes.data == nullptr || a.params.data == nullptr) {
    return "x, slots, codes and params must not be null";
  }
  if (const char* wrong = rows_problem(a.codes, 8)) return wrong;
  if (const char* wrong = rows_problem(a.params, a.param_dtype == OSCAR_FLOAT32 ? 8 : 4)) return wrong;
  if (const char* wrong = rows_problem({a.x, 0, a.x_token_stride, a.x_head_stride}, 16)) return wrong;
  return rows_problem({a.rotation, 0, 0, a.rotation_head_stride}, 4);
}

PackParams params_of(const oscar_int2_pack_args& a) {
  return {a, a.clip_ratio > 0 ? clip_rank(a.clip_ratio, a.head_dim) : -1, FastDivide(a.page_size)};
}

}  // namespace
}  // namespace oscar::cuda

using namespace oscar::cuda;

extern "C" __attribute__((visibility("default"))) int oscar_int2_pack(const oscar_int2_pack_args* args, void* stream) {
  if (const char* wrong = args == nullptr ? "no arguments" : problem(*args); wrong != nullptr) return refuse(wrong);
  if (args->num_tokens == 0) return cudaSuccess;
  return launch_shape(params_of(*args), static_cast<cudaStream_t>(stream));
}
