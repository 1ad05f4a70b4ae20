// SPDX-License-Identifier: MIT
// oscar_coded_pack(): norm and RoPE of keys, rotation, codes, scales and pages in one pass. From equal rows y the bytes
// are those of kernels/reference/coded_row.cpp (compiled without contraction). A warp takes 32 tokens of a head at a
// time.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/cuda/coded_pack_encode.cuh"
#include "kernels/cuda/coded_pack_rows.cuh"
#include "kernels/cuda/coded_turn.cuh"
#include "kernels/cuda/launch.cuh"

namespace oscar::cuda {
namespace {

/// A block's shared memory: the warps' rows, the head's table, the rotation and what it makes of the mean.
template <int kDim, bool kRotate>
struct CodedPackPlaces {
  static constexpr int kWarps = kRotate && kDim == 256 ? 4 : 8;  // what shared memory has room for beside a rotation
  static constexpr int kBlocks = kDim <= 128 ? 2 : 1;            // of a multiprocessor
  static constexpr int kTable = kWarps * CodedTile<kDim>::kBytes;
  static constexpr int kSide = kTable + static_cast<int>(sizeof(CodedPackScales));
  static constexpr int kRotation = kSide + static_cast<int>(sizeof(CodedPackSide));
  static constexpr int kBias = kRotation + (kRotate ? 2 * kDim * kDim : 0);
  static constexpr int kBytes = kBias + (kRotate ? 4 * kDim : 0);
};

/// Copies 16-byte pieces to shared memory, by all threads of a block.
__device__ __forceinline__ void copy_whole(unsigned to, const void* from, int bytes) {
  for (int i = static_cast<int>(threadIdx.x) * 16; i < bytes; i += static_cast<int>(blockDim.x) * 16) {
    copy_async<16>(to + static_cast<unsigned>(i), static_cast<const unsigned char*>(from) + i);
  }
}

template <int kDim>
__device__ __forceinline__ void copy_rotation(const oscar_coded_rows& rows, int head, unsigned to) {
  const unsigned char* const from = moved(rows.rotation, rows.rotation_head_stride, head);
  for (unsigned i = threadIdx.x; i < kDim * kDim / 8; i += blockDim.x) {
    copy_async<16>(to + place<kDim>(i / (kDim / 8), i % (kDim / 8)), from + i * 16);
  }
}

/// bias = -mean R, by all threads of a block.
template <int kDim>
__device__ __forceinline__ void make_bias(const oscar_coded_rows& rows, int head, const unsigned char* rotation,
                                          float* bias) {
  const auto* const mean = reinterpret_cast<const float*>(moved(rows.mean, rows.mean_head_stride, head));
  for (unsigned i = threadIdx.x; i < kDim; i += blockDim.x) {
    float sum = 0;
    if (rows.mean != nullptr) {
#pragma unroll 16
      for (unsigned k = 0; k < kDim; ++k) {
        const unsigned char* const at = rotation + place<kDim>(k, i / 8) + i % 8 * 2;
        sum = __fmaf_rn(-__ldg(mean + k), low_bf16(*reinterpret_cast<const unsigned short*>(at)), sum);
      }
    }
    bias[i] = sum;
  }
}

/// Turns the rows of a warp's tile back. position: of the lane's token.
template <int kDim>
__device__ __forceinline__ void turn_back(const CodedTile<kDim>& tile, const oscar_coded_turned& turned, int head,
                                          int position) {
  const TurnedPairs<kDim> pairs(turned, head);
#pragma unroll 1
  for (unsigned row = 0; row < kCodedPackTokens; ++row) {
    pairs.back(
        [&](int channel) { return reinterpret_cast<__nv_bfloat16*>(tile.at(row, static_cast<unsigned>(channel))); },
        __shfl_sync(kAllLanes, position, static_cast<int>(row)));
  }
  __syncwarp();
}

/// Grid: (any number, sides * num_kv_heads); blocks of a head and side share its tiles. kTurns: keys before RoPE, and
/// no values.
template <int kDim, bool kRotate, bool kNormRope, bool kTurns>
__global__ void __launch_bounds__(CodedPackPlaces<kDim, kRotate>::kWarps* kWarp,
                                  CodedPackPlaces<kDim, kRotate>::kBlocks)
    coded_pack(const __grid_constant__ CodedPackParams p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Shared = CodedPackPlaces<kDim, kRotate>;
  const int heads = p.args.num_kv_heads, which = static_cast<int>(blockIdx.y);
  const int value_side = p.first_side + which / heads, head = which % heads;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const oscar_coded_rows& rows = value_side == 0 ? p.args.k : p.args.v;
  const CodedTile<kDim> tile(rows, head, shared + warp * CodedTile<kDim>::kBytes);
  const auto target = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const auto* const table = static_cast<const CodedPackTable*>(p.args.table);
  const auto& side = *reinterpret_cast<const CodedPackSide*>(shared + Shared::kSide);
  const auto& scales = *reinterpret_cast<const CodedPackScales*>(shared + Shared::kTable);
  copy_whole(target + Shared::kTable, &table->scales, sizeof(CodedPackScales));
  copy_whole(target + Shared::kSide, &table->side[value_side * heads + head], sizeof(CodedPackSide));
  follow_previous_launch();
  if constexpr (kRotate) copy_rotation<kDim>(rows, head, target + Shared::kRotation);
  commit_copies();
  const int step = static_cast<int>(gridDim.x) * Shared::kWarps * kCodedPackTokens;
  int first = (warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) * kCodedPackTokens;
  if (first < p.args.num_tokens) tile.copy(first, p.args.num_tokens);
  wait_for_copies<0>();
  __syncthreads();
  if constexpr (kRotate) {
    make_bias<kDim>(rows, head, shared + Shared::kRotation, reinterpret_cast<float*>(shared + Shared::kBias));
    __syncthreads();
  }
  for (; first < p.args.num_tokens; first += step) {
    const int slot = first + lane < p.args.num_tokens ? p.args.slots[first + lane] : -1;
    int position = 0;
    if constexpr (kNormRope) {
      if (value_side == 0) position = position_of(p.args.norm_rope, min(first + lane, p.args.num_tokens - 1));
    }
    wait_for_copies<0>();
    __syncwarp();
    if constexpr (kNormRope) {
      if (value_side == 0) NormRope<kDim>(p.args.norm_rope, head).finish(tile, first, p.args.num_tokens, position);
    }
    if constexpr (kTurns) {
      const int token = min(first + lane, p.args.num_tokens - 1);
      turn_back(tile, p.args.turned, head, p.args.turned.positions[token]);
    }
    if constexpr (kRotate) {
      tile.rotate(target + Shared::kRotation, reinterpret_cast<const float*>(shared + Shared::kBias));
    }
    const PagePlaces places(p, side, slot);
    CodedEncoder<kDim, kRotate>(tile, side, scales, places, value_side).run();
    __syncwarp();  // every lane has read its rows
    if (first + step < p.args.num_tokens) tile.copy(first + step, p.args.num_tokens);
  }
}

template <int kDim, bool kRotate, bool kNormRope, bool kTurns = false>
int launch(const CodedPackParams& p, cudaStream_t stream) {
  using Shared = CodedPackPlaces<kDim, kRotate>;
  constexpr int kBlocks = Shared::kBlocks * 132;  // what an H100 holds at once
  const int parts = p.sides * p.args.num_kv_heads, rows = kCodedPackTokens * Shared::kWarps;
  const int blocks = (p.args.num_tokens + rows - 1) / rows;
  const dim3 grid(static_cast<unsigned>(std::min(blocks, std::max(1, kBlocks / parts))), static_cast<unsigned>(parts));
  return launch_overlapping<coded_pack<kDim, kRotate, kNormRope, kTurns>>(p, grid, Shared::kWarps * kWarp,
                                                                          Shared::kBytes, Shared::kBytes, stream);
}

template <int kDim, bool kRotate>
int launch_keys(const CodedPackParams& p, cudaStream_t stream) {
  return is_wanted(p.args.norm_rope) ? launch<kDim, kRotate, true>(p, stream) : launch<kDim, kRotate, false>(p, stream);
}

template <int kDim>
int launch_either(CodedPackParams p, cudaStream_t stream) {
  if (p.args.turned.table != nullptr) {
    const bool values = p.sides == 2;
    p.sides = 1;
    const int status = is_wanted(p.args.norm_rope) ? launch<kDim, false, true, true>(p, stream)
                                                   : launch<kDim, false, false, true>(p, stream);
    if (status != cudaSuccess || !values) return status;
    p.first_side = 1, p.args.norm_rope = {};
  }
  const oscar_coded_rows& rows = p.first_side == 0 ? p.args.k : p.args.v;
  return rows.rotation != nullptr ? launch_keys<kDim, true>(p, stream) : launch_keys<kDim, false>(p, stream);
}

const char* side_problem(const oscar_coded_rows& rows) {
  if (const char* wrong = rows_problem({rows.x, 0, rows.x_token_stride, rows.x_head_stride}, 16)) return wrong;
  if (rows.mean != nullptr && rows.rotation == nullptr) return "a mean needs a rotation";
  if (const char* wrong = rows_problem({rows.mean, 0, 0, rows.mean_head_stride}, 4)) return wrong;
  return rows_problem({rows.rotation, 0, 0, rows.rotation_head_stride}, 16);
}

const char* norm_rope_problem(const oscar_norm_rope& n, const void* keys, int head_dim) {
  constexpr const char* kTypes = "the norm's weight, and cosines and sines, must be float32 or bfloat16";
  if (keys == nullptr) return "norm, RoPE and finished rows are of keys, and there are none";
  if (n.norm_weight != nullptr) {
    if (n.norm_dtype != OSCAR_FLOAT32 && n.norm_dtype != OSCAR_BFLOAT16) return kTypes;
    if (!(n.norm_epsilon > 0) || !std::isfinite(n.norm_epsilon)) return "norm_epsilon must be positive";
    if (const char* wrong = rows_problem({n.norm_weight, 0, 0, 0}, 16)) return wrong;
  }
  if (n.cos_sin != nullptr) {
    if (n.cos_sin_dtype != OSCAR_FLOAT32 && n.cos_sin_dtype != OSCAR_BFLOAT16) return kTypes;
    if (n.rotary_dim < 8 || n.rotary_dim > head_dim || n.rotary_dim % 8 != 0)
      return "rotary_dim must be a multiple of 8 from 8 to head_dim";
    if (n.interleaved != 0 && n.interleaved != 1) return "interleaved must be 0 or 1";
    if (n.positions == nullptr) return "RoPE needs positions";
    if (n.position_bytes != 4 && n.position_bytes != 8) return "positions must be of 4 or 8 bytes";
    if (const char* wrong = rows_problem({n.cos_sin, 0, 0, 0}, 16)) return wrong;
  }
  return rows_problem({n.rows.data, 0, n.rows.token_stride, n.rows.head_stride}, 16);
}

const char* problem(const oscar_coded_pack_args& a) {
  if (a.num_tokens < 0 || a.num_kv_heads < 1 || a.num_kv_heads > 32767)
    return "num_tokens or num_kv_heads is out of range";
  if (const char* wrong = head_dim_problem(a.head_dim)) return wrong;
  if (const char* wrong = coded_pages_problem(a.table, a.page_size, a.pages, a.page_stride, a.token_bytes))
    return wrong;
  if (a.k.x == nullptr && a.v.x == nullptr) return "there are rows neither of keys nor of values";
  for (const oscar_coded_rows* rows : {&a.k, &a.v}) {
    if (rows->x == nullptr) continue;
    if (const char* wrong = side_problem(*rows)) return wrong;
  }
  if (const char* wrong = turned_problem(a.turned, a.k.x)) return wrong;
  if (a.turned.table != nullptr) {
    if (a.k.rotation != nullptr || a.k.mean != nullptr) return "keys that turn have neither a rotation nor a mean";
  } else if (a.k.x != nullptr && a.v.x != nullptr && (a.k.rotation == nullptr) != (a.v.rotation == nullptr)) {
    return "keys and values must both have rotations, or neither; pack them one after another";
  }
  if (is_wanted(a.norm_rope)) {
    if (const char* wrong = norm_rope_problem(a.norm_rope, a.k.x, a.head_dim)) return wrong;
  }
  return a.slots == nullptr ? "slots must not be null" : nullptr;
}

}  // namespace
}  // namespace oscar::cuda

using namespace oscar::cuda;

extern "C" __attribute__((visibility("default"))) int oscar_coded_pack(const oscar_coded_pack_args* args,
                                                                       void* stream) {
  if (const char* wrong = args == nullptr ? "no arguments" : problem(*args); wrong != nullptr) return refuse(wrong);
  if (args->num_tokens == 0) return cudaSuccess;
  const CodedPackParams p{*args, std::countr_zero(static_cast<unsigned>(args->page_size)), args->k.x != nullptr ? 0 : 1,
                          args->k.x != nullptr && args->v.x != nullptr ? 2 : 1};
  return with_head_dim(args->head_dim,
                       [&]<int kDim>() { return launch_either<kDim>(p, static_cast<cudaStream_t>(stream)); });
}
