// SPDX-License-Identifier: MIT
// The coded decode kernel itself. It cuts sequences, reads the window and adds up its parts as the INT2 kernel does.
#pragma once

#include "kernels/cuda/coded_attention_history.cuh"
#include "kernels/cuda/int2_decode_kernel.cuh"

namespace oscar::cuda {

/// Floats of a head in the results of one warp by operand: rows of the operands, then the zeros of the classes; the
/// stride makes no bank conflicts.
template <class S>
inline constexpr int kOperandStride = 16 * S::kOperands + 8;
/// Bytes of a warp's copies that merge_warps() needs of this kernel.
template <class S>
inline constexpr int kCodedMergeBytes = kMergeBytes<S> + 4 * kOperandStride<S> * 4;

/// The channels of four heads of one warp, to rows[head][channel]: the sum over the warp's tokens.
template <class S>
__device__ __forceinline__ void write_coded(const WarpState<S>& state, const CodedOperands<S>& operands,
                                            int value_pairs, int tile_of_heads, float* rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  float* const sums = rows + 4 * kMergeStride<S>;  // [head][row of an operand]
  float* const own = sums + t * kOperandStride<S>;
  const float zero[2] = {sum_over_tokens(state.zero[tile_of_heads][0]), sum_over_tokens(state.zero[tile_of_heads][1])};
#pragma unroll
  for (int o = 0; o < S::kOperands; ++o) {
    if (o >= 2 * value_pairs) break;
    const float(&out)[4] = state.out[tile_of_heads / 2][o];
    const bool second = S::kClassColumns ? operands.value[o / 2].mask[o % 2].high >> 24 != 0 : tile_of_heads % 2 == 1;
    own[16 * o + g] = second ? out[1] : out[0];
    own[16 * o + g + 8] = second ? out[3] : out[2];
  }
  if (g < 2) own[16 * S::kOperands + g] = zero[g] * 0x1p-24F;
  __syncwarp();
#pragma unroll
  for (int channel = lane; channel < S::kDim; channel += kWarp) {
    const int block = channel / 8, j = channel % 8, end = operands.block_end[block];
    float total[4] = {};
    for (int i = block == 0 ? 0 : operands.block_end[block - 1]; i < end; ++i) {
      const CodedValuePart part = operands.part[i];
      const int at = part.slot + (part.in_half != 0 ? j / 2 + 8 * (j % 2) : j);
#pragma unroll
      for (int head = 0; head < 4; ++head) {
        const float* const of_head = sums + head * kOperandStride<S>;
        total[head] += (of_head[at] - of_head[16 * S::kOperands + part.narrow] * part.middle) * part.unit;
      }
    }
    const float step = operands.value_step[channel] * 0x1p24F;
#pragma unroll
    for (int head = 0; head < 4; ++head) rows[head * kMergeStride<S> + channel] = total[head] * step;
  }
}

/// Grid: (splits, num_kv_heads * parts, batch), blocks of rule.warps warps.
template <class S>
__global__ void __launch_bounds__(32 * kMostDecodeWarps, S::kBlocks)
    coded_decode(const __grid_constant__ CodedParams p) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ __align__(16) CodedOperands<S> operands;
  __shared__ float units[S::kHeads];
  const int split = static_cast<int>(blockIdx.x), part = static_cast<int>(blockIdx.y);
  const int sequence = static_cast<int>(blockIdx.z), kv_head = part / p.parts;
  const int warp = uniform(static_cast<int>(threadIdx.x) / kWarp);
  const int heads_per_kv = p.args.num_q_heads / p.args.layout.num_kv_heads, part_first = part % p.parts * p.part_heads;
  const int first_head = kv_head * heads_per_kv + part_first;
  const int num_heads = min(p.part_heads, heads_per_kv - part_first);
  const auto* q = static_cast<const __nv_bfloat16*>(p.args.q) +
                  (std::int64_t{sequence} * p.args.num_q_heads + first_head) * S::kDim;
  const CodedHeadTable& table = static_cast<const CodedHeadTable*>(p.args.layout.table)[kv_head];
  CodedCopies<S> copies(p, table, sequence, shared + warp * p.warp_bytes);
  // Most sequences are as long as the longest: its pages are looked up while the length is on its way.
  const int longest = p.args.history.max_length, likely_first = p.longest.history_first(split);
  operands.load(table);
  follow_previous_launch();
  if (likely_first >= 0 && likely_first < longest) {
    copies.look_up(likely_first, min(likely_first + p.longest.history_tokens, longest), warp);
  }
  const int length = p.args.history.lengths[sequence], window = p.args.window.lengths[sequence];
  const bool likely = length == longest && window == p.args.window.max_length;
  const SplitPlan plan = likely ? p.longest : SplitPlan(length, window, p.rule);
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
    if (!copies.has(first, end, warp)) copies.look_up(first, end, warp);
    copies.start();
    queries.store(q, num_heads, table, warp, p.rule.warps, p.score_scale);
    wait_for_copies<2>();  // all but the history's: the operands are there
    __syncthreads();
    CodedHistoryWarp<S>(p, table, copies, shared + warp * p.warp_bytes, queries, operands).run(state);
  }
  const std::int64_t unit = std::int64_t{sequence} * gridDim.y + part;
  const PartialView all{p.partials + unit * p.unit_floats, num_heads, S::kDim};
  merge_warps<S>(state, packed, shared, p.warp_bytes, p.rule.warps, all.split(split),
                 [&](int tile, float* rows) { write_coded<S>(state, operands, table.value_pairs, tile, rows); });
  if (!is_last_block(p.tickets + unit, plan.count())) return;
  const std::int64_t row = std::int64_t{sequence} * p.args.num_q_heads + first_head;
  SplitMerge<S>(all, plan.count(), reinterpret_cast<float*>(shared))
      .run(p.args.out + row * S::kDim, p.args.lse == nullptr ? nullptr : p.args.lse + row);
}

}  // namespace oscar::cuda
