// SPDX-License-Identifier: MIT
// oscar/int2_attention.h: checks the arguments, chooses the kernel's shape, launches it.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <string>

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

template <int kDim, int kGroups>
struct Shapes {
  /// task.operator()<S>() with the shape for so many query heads.
  template <class Task>
  static auto choose(int heads, bool half_params, const Task& task) {
    if constexpr (kDim < 256) {
      if (heads > 12) return choose_params<4>(half_params, task);
      if (heads > 8) return choose_params<3>(half_params, task);
    }
    return heads > 4 ? choose_params<2>(half_params, task) : choose_params<1>(half_params, task);
  }
  template <int kKeyTiles, class Task>
  static auto choose_params(bool half, const Task& task) {
    return half ? task.template operator()<DecodeShape<kDim, kGroups, kKeyTiles, true>>()
                : task.template operator()<DecodeShape<kDim, kGroups, kKeyTiles, false>>();
  }
};

template <class Task>
auto choose_shape(const oscar_int2_decode_args& a, int heads, const Task& task) {
  const int groups = a.head_dim / a.group_size;
  const bool half = a.param_dtype != OSCAR_FLOAT32;
  switch (a.head_dim) {
    case 64:
      return groups == 1 ? Shapes<64, 1>::choose(heads, half, task) : Shapes<64, 2>::choose(heads, half, task);
    case 128:
      return groups == 1   ? Shapes<128, 1>::choose(heads, half, task)
             : groups == 2 ? Shapes<128, 2>::choose(heads, half, task)
                           : Shapes<128, 4>::choose(heads, half, task);
    default:
      return groups == 1   ? Shapes<256, 1>::choose(heads, half, task)
             : groups == 4 ? Shapes<256, 4>::choose(heads, half, task)
                           : Shapes<256, 8>::choose(heads, half, task);
  }
}

int log2_of(int power) { return std::countr_zero(static_cast<unsigned>(power)); }

PagedRows narrow(const oscar_paged_rows& rows) {
  return {static_cast<const unsigned char*>(rows.data), static_cast<int>(rows.page_stride),
          static_cast<int>(rows.token_stride), static_cast<int>(rows.head_stride)};
}

DecodeParams params_of(const oscar_int2_decode_args& a) {
  DecodeParams p{};
  p.args = a;
  p.k_codes = narrow(a.k_codes), p.v_codes = narrow(a.v_codes);
  p.k_params = narrow(a.k_params), p.v_params = narrow(a.v_params);
  p.k_window = narrow(a.k_window), p.v_window = narrow(a.v_window);
  p.parts = parts_of(a);
  const int heads = a.num_q_heads / a.num_kv_heads;
  p.part_heads = (heads + p.parts - 1) / p.parts;
  const std::int64_t batch = a.split_batch > 0 ? a.split_batch : a.batch;
  const int warps_at_once = kMostDecodeWarps * choose_shape(a, p.part_heads, []<class S>() { return S::kBlocks; });
  p.rule = SplitRule::of(batch * a.num_kv_heads, a.num_kv_heads, warps_at_once);
  p.longest = SplitPlan(a.history.max_length, a.window.max_length, p.rule);
  p.max_splits = SplitPlan::most(a.history.max_length, a.window.max_length, p.rule);
  p.unit_floats = std::int64_t{p.max_splits} * partial_floats(p.part_heads, a.head_dim);
  p.history_shift = log2_of(a.history.page_size);
  p.window_shift = log2_of(a.window.page_size);
  p.score_scale = a.softmax_scale * 1.4426950408889634F;
  return p;
}

std::size_t ticket_bytes(const oscar_int2_decode_args& a, const DecodeParams& p) {
  return counter_bytes(static_cast<std::size_t>(a.batch) * a.num_kv_heads * p.parts);
}

std::size_t partial_bytes(const oscar_int2_decode_args& a, const DecodeParams& p) {
  return sizeof(float) * static_cast<std::size_t>(p.unit_floats) * a.batch * a.num_kv_heads * p.parts;
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
  return ticket_bytes(*args, p) + partial_bytes(*args, p);
}

__attribute__((visibility("default"))) int oscar_int2_decode(const oscar_int2_decode_args* args, void* stream) {
  const std::size_t needed = oscar_int2_decode_workspace(args);
  if (needed == 0) return cudaErrorInvalidValue;
  if (args->out == nullptr || reinterpret_cast<std::uintptr_t>(args->out) % 8 != 0) {
    return refuse("out must not be null, and 8-byte aligned");
  }
  if (args->workspace == nullptr || args->workspace_bytes < needed) {
    return refuse("the workspace must have " + std::to_string(needed) + " bytes");
  }
  DecodeParams p = params_of(*args);
  p.tickets = static_cast<int*>(args->workspace);
  p.partials = reinterpret_cast<float*>(static_cast<char*>(args->workspace) + ticket_bytes(*args, p));
  return choose_shape(*args, p.part_heads, [&]<class S>() { return launch<S>(p, static_cast<cudaStream_t>(stream)); });
}

}  // extern "C"
