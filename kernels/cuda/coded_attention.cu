// SPDX-License-Identifier: MIT
// oscar/coded_attention.h: checks the arguments, and what the kernel is given.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "kernels/cuda/coded_attention_scores.cuh"
#include "kernels/cuda/coded_layout.hpp"
#include "kernels/cuda/coded_turn.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/server_arguments.hpp"

namespace oscar::cuda {
namespace {

/// What is wrong with the arguments; null if nothing is.
const char* problem(const oscar_coded_decode_args& a) {
  const oscar_coded_layout& layout = a.layout;
  if (const char* wrong = head_dim_problem(layout.head_dim)) return wrong;
  if (const char* wrong = batch_problem(a)) return wrong;
  if (layout.table == nullptr || !is_aligned(layout.table, 16)) {
    return "layout.table must be device memory, 16-byte aligned";
  }
  const std::pair<int, int> counts[] = {{layout.key_operands, kMostKeyOperands},
                                        {layout.value_operands, kMostValueOperands},
                                        {layout.planes, layout.head_dim / 8}};
  for (const auto& [count, most] : counts) {
    if (count < 0 || count > most) return "layout must be what oscar_coded_layout_of() made";
  }
  for (const oscar_paged_rows* rows : {&a.k_window, &a.v_window}) {
    if (rows->data == nullptr && a.window.max_length > 0) return "k_window and v_window must not be null";
    if (const char* wrong = rows_problem(*rows, 16)) return wrong;
  }
  for (const oscar_page_table* table : {&a.history, &a.window}) {
    if (const char* wrong = table_problem(*table)) return wrong;
  }
  if (a.history.page_size < 4) return "page_size of the history must be 4 or more";
  const bool has_all = a.q != nullptr && (a.pages != nullptr || a.history.max_length == 0);
  if (!has_all || !is_aligned(a.q, 16) || !is_aligned(a.pages, 16)) {
    return "pages and q must not be null, and 16-byte aligned";
  }
  if (a.page_stride < 0 || a.page_stride % 16 != 0 || a.page_stride > std::numeric_limits<int>::max()) {
    return "page_stride must be a multiple of 16, and less than 2 GiB";
  }
  return turned_problem(a.turned, a.q, false);
}

/// Bytes of shared memory that a block of the current device may ask for, and that a multiprocessor has; 48 KiB where
/// CUDA does not say, which then fails at the launch.
struct SharedMemory {
  int block = 48 * 1024, multiprocessor = 48 * 1024;

  SharedMemory() {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return;
    (void)cudaDeviceGetAttribute(&block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    (void)cudaDeviceGetAttribute(&multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  }
};

/// Chooses a tiling and how sequences are cut, with so many warps a block that a multiprocessor's shared memory has
/// room for the blocks that its registers have room for, and says what they take of it. p.fits: whether one has room
/// for a block at all.
void choose_rule(std::int64_t batch, const oscar_coded_layout& layout, bool turns, CodedParams& p) {
  constexpr int kOther = 7 * 1024;  // what a block has besides
  const SharedMemory memory;
  CodedTiling& tiling = p.tiling = CodedTiling::of(layout.head_dim, p.part_heads, layout.value_operands);
  if (turns && tiling.key_tiles > 2) tiling.operands = std::max(tiling.operands, CodedTiling::kSome);  // no registers
  const int units = layout.num_kv_heads * p.parts, warps_at_once = tiling.warps_at_once();
  SplitRule& rule = p.rule = SplitRule::of(batch * units, units, warps_at_once, turns);
  const int blocks = warps_at_once / rule.warps;
  p.most_shared_bytes = memory.block - kOther;
  const int share = rule.warps == 8 ? memory.multiprocessor / blocks - 4 * 1024 : p.most_shared_bytes;
  const auto queries = [&](const CodedTiling& of, int warps) {
    const int operands = layout.key_operands;
    return turns ? static_cast<int>(TurnedPlaces(layout.head_dim, of.step(), of.key_tiles, operands, warps).end)
                 : of.word_bytes(operands);
  };
  const int room = std::min(share, p.most_shared_bytes);
  tiling = tiling.fitted(room, layout.planes, rule.warps, queries);
  rule.warps = tiling.warps(room, layout.planes, rule.warps, queries);
  p.query_bytes = queries(tiling, rule.warps);
  p.stage_bytes = tiling.stage_bytes(layout.planes), p.warp_bytes = tiling.warp_bytes(layout.planes);
  p.fits = p.query_bytes + rule.warps * p.warp_bytes <= p.most_shared_bytes;
}

PagedRows narrow(const oscar_paged_rows& rows) {
  return {static_cast<const unsigned char*>(rows.data), static_cast<int>(rows.page_stride),
          static_cast<int>(rows.token_stride), static_cast<int>(rows.head_stride)};
}

CodedParams params_of(const oscar_coded_decode_args& a) {
  CodedParams p{};
  const int dim = a.layout.head_dim, kv_heads = a.layout.num_kv_heads, per_token = a.num_q_heads / kv_heads;
  const int heads = per_token * a.query_tokens, most = dim == 256 ? 8 : 16;  // of a block
  p.per_token_inverse = (65536 + per_token - 1) / per_token;
  p.parts = (heads + most - 1) / most;
  p.part_heads = (heads + p.parts - 1) / p.parts;
  choose_rule(a.split_batch > 0 ? a.split_batch : a.batch, a.layout, a.turned.table != nullptr, p);
  p.page_stride = static_cast<int>(a.page_stride);
  p.args = a;
  p.k_window = narrow(a.k_window), p.v_window = narrow(a.v_window);
  p.longest = SplitPlan(a.history.max_length, a.window.max_length, p.rule);
  p.max_splits = SplitPlan::most(a.history.max_length, a.window.max_length, p.rule);
  p.unit_floats = std::int64_t{p.max_splits} * partial_floats(p.part_heads, dim);
  p.history_shift = std::countr_zero(static_cast<unsigned>(a.history.page_size));
  p.window_shift = std::countr_zero(static_cast<unsigned>(a.window.page_size));
  p.score_scale = a.softmax_scale * kLog2E, p.soft_cap = a.soft_cap * kLog2E;
  return p;
}

/// Bytes of a workspace that counters of finished splits take: the same for all calls of up to 16384 counters, so that
/// calls of different shapes can share a workspace, which expect zeros there.
std::size_t ticket_bytes(const CodedParams& p) {
  const std::size_t counters = static_cast<std::size_t>(p.args.batch) * p.args.layout.num_kv_heads * p.parts;
  return std::max<std::size_t>((4 * counters + 255) / 256 * 256, 64 * 1024);
}

}  // namespace
}  // namespace oscar::cuda

using namespace oscar::cuda;

extern "C" {

__attribute__((visibility("default"))) size_t oscar_coded_decode_workspace(const oscar_coded_decode_args* args) {
  const char* wrong = args == nullptr ? "no arguments" : problem(*args);
  if (wrong != nullptr) {
    (void)refuse(wrong);
    return 0;
  }
  const CodedParams p = params_of(*args);
  if (!p.fits) {
    (void)refuse(
        "the keys of a head have more pieces than a multiprocessor has room for: give its channels fewer bits");
    return 0;
  }
  return ticket_bytes(p) +
         sizeof(float) * static_cast<std::size_t>(p.unit_floats) * args->batch * args->layout.num_kv_heads * p.parts;
}

__attribute__((visibility("default"))) int oscar_coded_decode(const oscar_coded_decode_args* args, void* stream) {
  const std::size_t needed = oscar_coded_decode_workspace(args);
  if (needed == 0) return cudaErrorInvalidValue;
  if (args->out == nullptr || !is_aligned(args->out, 8)) {
    return refuse("out must not be null, and 8-byte aligned");
  }
  if (args->workspace == nullptr || !is_aligned(args->workspace, 16) || args->workspace_bytes < needed) {
    return refuse("the workspace must have " + std::to_string(needed) + " bytes, 16-byte aligned");
  }
  CodedParams p = params_of(*args);
  p.tickets = static_cast<int*>(args->workspace);
  p.partials = reinterpret_cast<float*>(static_cast<char*>(args->workspace) + ticket_bytes(p));
  return with_head_dim(args->layout.head_dim, [&]<int kDim>() {
    auto* const to = static_cast<cudaStream_t>(stream);
    return args->turned.table == nullptr ? launch_coded<kDim, false>(p, to) : launch_coded<kDim, true>(p, to);
  });
}

}  // extern "C"
