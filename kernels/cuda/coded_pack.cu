// SPDX-License-Identifier: MIT
// oscar_coded_pack(): codes, scales and pages in one pass. From equal rows y the bytes are those of
// kernels/reference/coded_row.cpp (compiled without contraction). A warp takes 32 tokens of a head at a time.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "kernels/cuda/coded_pack_encode.cuh"
#include "kernels/cuda/coded_pack_rows.cuh"
#include "kernels/cuda/coded_turn.cuh"
#include "kernels/cuda/launch.cuh"

namespace oscar::cuda {
namespace {

/// A block's shared memory: the warps' rows and the head's table.
template <int kDim>
struct CodedPackPlaces {
  static constexpr int kWarps = 8;
  static constexpr int kBlocks = kDim <= 128 ? 2 : 1;  // of a multiprocessor
  static constexpr int kTable = kWarps * CodedTile<kDim>::kBytes;
  static constexpr int kSide = kTable + static_cast<int>(sizeof(CodedPackScales));
  static constexpr int kBytes = kSide + static_cast<int>(sizeof(CodedPackSide));
};

/// Copies 16-byte pieces to shared memory, by all threads of a block.
__device__ __forceinline__ void copy_whole(unsigned to, const void* from, int bytes) {
  for (int i = static_cast<int>(threadIdx.x) * 16; i < bytes; i += static_cast<int>(blockDim.x) * 16) {
    copy_async<16>(to + static_cast<unsigned>(i), static_cast<const unsigned char*>(from) + i);
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
template <int kDim, bool kTurns>
__global__ void __launch_bounds__(CodedPackPlaces<kDim>::kWarps* kWarp, CodedPackPlaces<kDim>::kBlocks)
    coded_pack(const __grid_constant__ CodedPackParams p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Shared = CodedPackPlaces<kDim>;
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
  commit_copies();
  const int step = static_cast<int>(gridDim.x) * Shared::kWarps * kCodedPackTokens;
  int first = (warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) * kCodedPackTokens;
  if (first < p.args.num_tokens) tile.copy(first, p.args.num_tokens);
  wait_for_copies<0>();
  __syncthreads();
  for (; first < p.args.num_tokens; first += step) {
    const int slot = first + lane < p.args.num_tokens ? p.args.slots[first + lane] : -1;
    wait_for_copies<0>();
    __syncwarp();
    if constexpr (kTurns) {
      const int token = min(first + lane, p.args.num_tokens - 1);
      turn_back(tile, p.args.turned, head, p.args.turned.positions[token]);
    }
    const PagePlaces places(p, side, slot);
    CodedEncoder<kDim>(tile, side, scales, places, value_side).run();
    __syncwarp();  // every lane has read its rows
    if (first + step < p.args.num_tokens) tile.copy(first + step, p.args.num_tokens);
  }
}

template <int kDim, bool kTurns>
int launch(const CodedPackParams& p, cudaStream_t stream) {
  using Shared = CodedPackPlaces<kDim>;
  constexpr int kBlocks = Shared::kBlocks * 132;  // what an H100 holds at once
  const int parts = p.sides * p.args.num_kv_heads, rows = kCodedPackTokens * Shared::kWarps;
  const int blocks = (p.args.num_tokens + rows - 1) / rows;
  const dim3 grid(static_cast<unsigned>(std::min(blocks, std::max(1, kBlocks / parts))), static_cast<unsigned>(parts));
  return launch_overlapping<coded_pack<kDim, kTurns>>(p, grid, Shared::kWarps * kWarp, Shared::kBytes, Shared::kBytes,
                                                      stream);
}

template <int kDim>
int launch_either(CodedPackParams p, cudaStream_t stream) {
  if (p.args.turned.table != nullptr) {
    const bool values = p.sides == 2;
    p.sides = 1;
    const int status = launch<kDim, true>(p, stream);
    if (status != cudaSuccess || !values) return status;
    p.first_side = 1;
  }
  return launch<kDim, false>(p, stream);
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
    if (const char* wrong = rows_problem({rows->x, 0, rows->x_token_stride, rows->x_head_stride}, 16)) return wrong;
  }
  if (const char* wrong = turned_problem(a.turned, a.k.x, false)) return wrong;
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
