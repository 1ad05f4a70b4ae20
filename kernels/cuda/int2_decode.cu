// SPDX-License-Identifier: MIT
// oscar/int2_attention.h: checks the arguments, chooses the kernel's shape, launches it.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>

#include "kernels/cuda/int2_arguments.hpp"
#include "kernels/cuda/int2_decode_kernel.cuh"

namespace oscar::cuda {

namespace {

/// What is wrong with the arguments; null if nothing is.
const char* problem(const oscar_int2_decode_args& a) {
  if (const char* wrong = batch_problem(a.batch, a.split_batch, a.num_q_heads, a.num_kv_heads, a.softmax_scale)) {
    return wrong;
  }
  if (const char* wrong = shape_problem(a.head_dim, a.group_size, a.param_dtype)) return wrong;
  const int param_bytes = (a.param_dtype == OSCAR_FLOAT32 ? 8 : 4) * (a.head_dim / a.group_size);
  for (const oscar_paged_rows* rows : {&a.k_codes, &a.v_codes, &a.k_params, &a.v_params, &a.k_window, &a.v_window}) {
    const bool params = rows == &a.k_params || rows == &a.v_params;
    if (const char* wrong = rows_problem(*rows, params && param_bytes < 16 ? param_bytes : 16)) return wrong;
  }
  for (const oscar_page_table* table : {&a.history, &a.window}) {
    if (const char* wrong = table_problem(*table)) return wrong;
  }
  if (a.q == nullptr || reinterpret_cast<std::uintptr_t>(a.q) % 16 != 0) {
    return "q must not be null, and 16-byte aligned";
  }
  return nullptr;
}

/// Blocks that share a KV head's query heads: registers hold 16 columns of 128 channels, or 8 of 256.
int parts_of(const oscar_int2_decode_args& a) {
  return a.head_dim == 256 && a.num_q_heads / a.num_kv_heads > 8 ? 2 : 1;
}

template <class S>
int launch(const DecodeParams& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(p.args.num_kv_heads * p.parts), static_cast<unsigned>(p.args.batch),
                  static_cast<unsigned>(p.max_splits));
  constexpr int kWarpBytes = DecodeStages<S>::kWarpBytes;
  static_assert(BlockQueries<S>::kLeastWarps * kWarpBytes >= split_merge_bytes(S::kHeads, SplitRule::kMostSplits));
  return launch_overlapping<int2_decode<S>>(p, grid, kWarp * p.rule.warps, p.rule.warps * kWarpBytes,
                                            kMostDecodeWarps * kWarpBytes, stream);
}

/// task.operator()<S>() with the shape for so many query heads.
template <class Task>
auto choose_shape(const oscar_int2_decode_args& a, int heads, const Task& task) {
  return with_groups(a.head_dim, a.group_size, [&]<int kDim, int kGroups>() {
    const auto with_tiles = [&]<int kKeyTiles>() {
      return a.param_dtype != OSCAR_FLOAT32 ? task.template operator()<DecodeShape<kDim, kGroups, kKeyTiles, true>>()
                                            : task.template operator()<DecodeShape<kDim, kGroups, kKeyTiles, false>>();
    };
    if constexpr (kDim < 256) {
      if (heads > 12) return with_tiles.template operator()<4>();
      if (heads > 8) return with_tiles.template operator()<3>();
    }
    return heads > 4 ? with_tiles.template operator()<2>() : with_tiles.template operator()<1>();
  });
}

DecodeParams params_of(const oscar_int2_decode_args& a) {
  DecodeParams p{};
  p.k_codes = narrow(a.k_codes), p.v_codes = narrow(a.v_codes);
  p.k_params = narrow(a.k_params), p.v_params = narrow(a.v_params);
  p.parts = parts_of(a);
  const int heads = a.num_q_heads / a.num_kv_heads;
  p.part_heads = (heads + p.parts - 1) / p.parts;
  const std::int64_t batch = a.split_batch > 0 ? a.split_batch : a.batch;
  const int warps_at_once = kMostDecodeWarps * choose_shape(a, p.part_heads, []<class S>() { return S::kBlocks; });
  p.rule = SplitRule::of(batch * a.num_kv_heads, a.num_kv_heads, warps_at_once);
  fill_common(a, a.head_dim, p);
  return p;
}

std::size_t ticket_bytes(const oscar_int2_decode_args& a, const DecodeParams& p) {
  return counter_bytes(static_cast<std::size_t>(a.batch) * a.num_kv_heads * p.parts);
}

}  // namespace
}  // namespace oscar::cuda

using namespace oscar::cuda;

extern "C" {

__attribute__((visibility("default"))) size_t oscar_int2_decode_workspace(const oscar_int2_decode_args* args) {
  const char* wrong = args == nullptr ? "no arguments" : problem(*args);
  if (wrong != nullptr) {
    (void)refuse(wrong);
    return 0;
  }
  const DecodeParams p = params_of(*args);
  return ticket_bytes(*args, p) +
         sizeof(float) * static_cast<std::size_t>(p.unit_floats) * args->batch * args->num_kv_heads * p.parts;
}

__attribute__((visibility("default"))) int oscar_int2_decode(const oscar_int2_decode_args* args, void* stream) {
  const std::size_t needed = oscar_int2_decode_workspace(args);
  if (needed == 0) return cudaErrorInvalidValue;
  DecodeParams p = params_of(*args);
  if (const int refused = place_results(*args, needed, ticket_bytes(*args, p), p)) return refused;
  return choose_shape(*args, p.part_heads, [&]<class S>() { return launch<S>(p, static_cast<cudaStream_t>(stream)); });
}

}  // extern "C"
