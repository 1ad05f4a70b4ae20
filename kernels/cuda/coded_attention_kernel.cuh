// SPDX-License-Identifier: MIT
// The coded decode kernel itself. It cuts sequences, reads the window and adds up its parts as the INT2 kernel does.
#pragma once

#include "kernels/cuda/coded_attention_history.cuh"
#include "kernels/cuda/int2_decode_kernel.cuh"

namespace oscar::cuda {

/// A head's channels of one warp, to `row`: in all lanes the sum over the warp's tokens.
template <class S>
__device__ __forceinline__ void write_coded(const WarpState<S>& state, const CodedHeadTable& table, int tile_of_heads,
                                            float* row) {
  const int g = static_cast<int>(threadIdx.x) % kWarp / 4;
  for (int i = g; i < S::kDim; i += 8) row[i] = 0;
  const float zero[2] = {sum_over_tokens(state.zero[tile_of_heads][0]), sum_over_tokens(state.zero[tile_of_heads][1])};
#pragma unroll
  for (int o = 0; o < S::kOperands; ++o) {
    if (o >= 2 * table.value_pairs) break;
    __syncwarp();  // the parts of a code may be other lanes'
    const bool narrow = table.value_pair[o / 2].narrow[o % 2] != 0;
    const CodedOperandChannels& channels = table.values[o];
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int channel = channels.channel[side][g];
      if (channel < 0) continue;
      const float(&out)[4] = state.out[tile_of_heads / 2][o];
      const bool second = S::kClassColumns ? narrow : tile_of_heads % 2 == 1;
      const float codes = (second ? out[2 * side + 1] : out[2 * side]) * 16777216;
      row[channel] +=
          (codes - zero[narrow ? kNarrowClass : kWideClass] * channels.middle[side]) * channels.factor[side][g];
    }
  }
}

/// Grid: (splits, num_kv_heads * parts, batch), blocks of rule.warps warps.
template <class S>
__global__ void __launch_bounds__(32 * kMostDecodeWarps, S::kBlocks)
    coded_decode(const __grid_constant__ CodedParams p) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ CodedOperands operands;
  __shared__ float units[S::kHeads];
  const int split = static_cast<int>(blockIdx.x), part = static_cast<int>(blockIdx.y);
  const int sequence = static_cast<int>(blockIdx.z), kv_head = part / p.parts;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int heads_per_kv = p.args.num_q_heads / p.args.layout.num_kv_heads, part_first = part % p.parts * p.part_heads;
  const int first_head = kv_head * heads_per_kv + part_first;
  const int num_heads = min(p.part_heads, heads_per_kv - part_first);
  const auto* q = static_cast<const __nv_bfloat16*>(p.args.q) +
                  (std::int64_t{sequence} * p.args.num_q_heads + first_head) * S::kDim;
  const CodedHeadTable& table = static_cast<const CodedHeadTable*>(p.args.layout.table)[kv_head];
  CodedHistoryWarp<S> history(p, table, sequence, shared + warp * p.warp_bytes);
  // Most sequences are as long as the longest: its pages are looked up while the length is on its way.
  const int longest = p.args.history.max_length;
  const SplitPlan likely(longest, p.args.window.max_length, p.rule);
  const int likely_first = likely.history_first(split);
  operands.load(table);
  follow_previous_launch();
  if (likely_first >= 0 && likely_first < longest) {
    history.look_up(likely_first, min(likely_first + likely.history_tokens, longest), warp);
  }
  const int length = p.args.history.lengths[sequence], window = p.args.window.lengths[sequence];
  const SplitPlan plan(length, window, p.rule);
  if (split >= plan.count()) return;

  WarpState<S> state;
  const bool packed = split >= plan.window_splits;
  if (!packed) {
    const int first = split * plan.window_tokens;
    WindowWarp<S, CodedParams>(p, sequence, kv_head)
        .run(first, min(first + plan.window_tokens, window), warp, q, num_heads, state);
  } else {
    const CodedQueries<S> queries(reinterpret_cast<unsigned*>(shared + p.rule.warps * p.warp_bytes), units);
    const int first = plan.history_first(split), end = min(first + plan.history_tokens, length);
    if (!history.has(first, end, warp)) history.look_up(first, end, warp);
    history.start();
    queries.store(q, num_heads, table, warp, p.rule.warps, p.score_scale);
    __syncthreads();
    history.run(queries, operands, state);
  }
  const std::int64_t unit = std::int64_t{sequence} * gridDim.y + part;
  const PartialView all{p.partials + unit * p.unit_floats, num_heads, S::kDim};
  merge_warps<S>(state, packed, shared, p.warp_bytes, p.rule.warps, all.split(split),
                 [&](int tile, float* row) { write_coded<S>(state, table, tile, row); });
  if (!is_last_block(p.tickets + unit, plan.count())) return;
  const std::int64_t row = std::int64_t{sequence} * p.args.num_q_heads + first_head;
  SplitMerge<S>(all, plan.count(), reinterpret_cast<float*>(shared))
      .run(p.args.out + row * S::kDim, p.args.lse == nullptr ? nullptr : p.args.lse + row);
}

}  // namespace oscar::cuda
