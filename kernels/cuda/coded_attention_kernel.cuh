// SPDX-License-Identifier: MIT
// The coded decode kernel itself, and which of its shapes is launched. Each head size is a file of its own, since a
// compiler takes long for them.
#pragma once

#include <algorithm>

#include "kernels/cuda/coded_attention_merge.cuh"
#include "kernels/cuda/coded_attention_window.cuh"
#include "kernels/cuda/launch.cuh"

namespace oscar::cuda {

/// Grid: (num_kv_heads * parts, batch, splits), blocks of rule.warps warps. Windows come last: they are short, and fill
/// the places that are free when the last pieces of histories are being read.
template <class S>
__global__ void __launch_bounds__(kWarp* kMostDecodeWarps, S::kBlocks)
    coded_decode(const __grid_constant__ CodedParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(16) CodedOperands<S> operands;
  __shared__ TeamSums<S> sums;
  __shared__ float units[S::kTurns ? 1 : S::kHeads];
  const int split = static_cast<int>(gridDim.z - 1 - blockIdx.z);
  const int part = static_cast<int>(blockIdx.x), sequence = static_cast<int>(blockIdx.y), kv_head = part / p.parts;
  const int warp = uniform(static_cast<int>(threadIdx.x) / kWarp);
  const int per_token = p.args.num_q_heads / p.args.layout.num_kv_heads, part_first = part % p.parts * p.part_heads;
  const std::int64_t row = std::int64_t{sequence} * p.args.query_tokens * p.args.num_q_heads + kv_head * per_token;
  CodedHeads heads{static_cast<const __nv_bfloat16*>(p.args.q) + row * S::kDim,
                   min(p.part_heads, per_token * p.args.query_tokens - part_first),
                   part_first,
                   per_token,
                   p.per_token_inverse,
                   p.args.num_q_heads,
                   p.args.query_tokens,
                   0};
  const CodedHeadTable& table = static_cast<const CodedHeadTable*>(p.args.layout.table)[kv_head];
  CodedCopies<S> copies(p, table, sequence);
  // Most sequences are as long as the longest: its pages are looked up while the length is on its way.
  const int longest = p.args.history.max_length, likely_first = p.longest.history_first(split);
  const int likely_end = min(likely_first + p.longest.history_tokens, longest);
  const bool reads_history = likely_first >= 0 && likely_first < longest;
  unsigned char* const behind_warps = shared + p.rule.warps * p.warp_bytes;
  auto share = [&] {
    if constexpr (S::kTurns) return TurnedQueries<S>(behind_warps, table, p.args, kv_head, p.rule.warps);
    if constexpr (!S::kTurns) return CodedQueryShare<S>(table, p.args.layout.key_operands, warp, p.rule.warps);
  }();
  if constexpr (S::kTurns) {
    if (reads_history) share.prepare();
  }
  operands.load(table);
  follow_previous_launch();
  if (reads_history) copies.look_up(likely_first, likely_end, warp);
  share.fetch(heads);
  const int length = p.args.history.lengths[sequence], window = p.args.window.lengths[sequence];
  heads.window = window;
  const bool likely = length == longest && window == p.args.window.max_length;
  const SplitPlan plan = likely ? p.longest : SplitPlan(length, window, p.rule);
  if (split >= plan.count()) return;

  const std::int64_t unit = std::int64_t{sequence} * gridDim.x + part;
  const PartialView<S> all{p.partials + unit * p.unit_floats, heads.count, p.max_splits};
  if (split < plan.window_splits) {
    const int first = split * plan.window_tokens, end = min(first + plan.window_tokens, window);
    WindowState<S> state;
    const WindowWarp<S> work(p, sequence, kv_head);
    work.fetch(first, end);
    work.run(first, end, warp, heads, state);
    merge_window<S>(state, shared, p.warp_bytes, p.rule.warps, all, split);
  } else {
    const int first = plan.history_first(split), end = min(first + plan.history_tokens, length);
    if (first != likely_first || end != likely_end) copies.look_up(first, end, warp);
    const int team = warp / S::kTeam, rank = warp % S::kTeam;
    CodedTeam<S> work(p, copies, shared + team * S::kTeam * p.warp_bytes, rank, 1 + team,
                      S::kTurns ? p.args.turned.positions[sequence] : 0, sums.of_team[team]);
    work.start();
    TeamState<S> state;
    if constexpr (S::kTurns) {
      if (!reads_history) share.prepare();
      share.store(heads, p.score_scale);
      wait_for_copies<2>();  // all but the history's: the operands are there
      __syncthreads();
      work.take(operands, share, warp);
    } else {
      const CodedQueries<S> queries(reinterpret_cast<unsigned*>(behind_warps), units);
      static_assert(CodedQueryShare<S>::kScratchBytes <= S::kWeightsBytes);
      share.store(heads, queries, shared + warp * p.warp_bytes + S::kStages * p.stage_bytes, p.score_scale);
      wait_for_copies<2>();
      __syncthreads();
      work.take(operands, queries);
    }
    work.run(state);
    TeamMerge<S>(sums, operands, p.rule.warps, reinterpret_cast<float*>(shared)).run(state, all, split);
  }
  if (!is_last_block(p.tickets + unit, plan.count())) return;
  SplitMerge<S>(all, plan.count(), heads, reinterpret_cast<float*>(shared))
      .run(p.args.out + row * S::kDim, p.args.lse == nullptr ? nullptr : p.args.lse + row);
}

template <class S>
int launch(const CodedParams& p, cudaStream_t stream) {
  static_assert(kMostDecodeWarps % S::kTeam == 0 && S::kTiling.warp_bytes(0) >= kWindowMergeBytes<S>);
  const dim3 grid(static_cast<unsigned>(p.args.layout.num_kv_heads * p.parts), static_cast<unsigned>(p.args.batch),
                  static_cast<unsigned>(p.max_splits));
  const int bytes =
      std::max(p.rule.warps * p.warp_bytes + p.query_bytes, split_merge_bytes(p.part_heads, p.max_splits));
  return launch_overlapping<coded_decode<S>>(p, grid, kWarp * p.rule.warps, bytes, p.most_shared_bytes, stream);
}

template <int kDim, int kOperands, bool kTurns>
int launch_coded_heads(const CodedParams& p, cudaStream_t stream) {
  if constexpr (kDim < 256) {
    if (p.tiling.key_tiles == 4) return launch<CodedShape<kDim, kOperands, 4, kTurns>>(p, stream);
    if (p.tiling.key_tiles == 3) return launch<CodedShape<kDim, kOperands, 3, kTurns>>(p, stream);
  }
  if (p.tiling.key_tiles == 2) return launch<CodedShape<kDim, kOperands, 2, kTurns>>(p, stream);
  return launch<CodedShape<kDim, kOperands, 1, kTurns>>(p, stream);
}

template <int kDim, bool kTurns>
int launch_coded(const CodedParams& p, cudaStream_t stream) {
  if constexpr (kDim == 256) {
    return launch_coded_heads<kDim, kMostValueOperands, kTurns>(p, stream);
  } else {
    if (p.tiling.operands == CodedTiling::kFew) return launch_coded_heads<kDim, CodedTiling::kFew, kTurns>(p, stream);
    if constexpr (kDim > 64) {
      if (p.tiling.operands > CodedTiling::kSome) {
        return launch_coded_heads<kDim, kMostValueOperands, kTurns>(p, stream);
      }
    }
    return launch_coded_heads<kDim, CodedTiling::kSome, kTurns>(p, stream);
  }
}

}  // namespace oscar::cuda
