// SPDX-License-Identifier: MIT
// How a block of the coded decode kernel adds up its teams: rows of operands become channels once a block.
#pragma once

#include "kernels/cuda/coded_attention_team.cuh"
#include "kernels/cuda/split_merge.cuh"

namespace oscar::cuda {

template <class S>
inline constexpr int kOperandStride = S::kTiling.operand_stride();

template <class S>
struct TeamSums {
  static constexpr int kTeams = kMostDecodeWarps / S::kTeam;
  TeamShared<S> of_team[kTeams];
  float highest[S::kHeads][kTeams];            // of each team
  float sum[S::kHeads][kMostDecodeWarps];      // of each warp's weights
  float zero[2][S::kHeads][kMostDecodeWarps];  // of each warp's weights times the scales of a class
  float total_zero[2][S::kHeads];              // relative to the highest team
};

/// Adds up the block's teams: `state` of each warp, at last in `to`. results: CodedTiling::warp_bytes() for each warp.
template <class S>
class TeamMerge {
 public:
  __device__ TeamMerge(TeamSums<S>& sums, const CodedOperands<S>& operands, int warps, float* results)
      : sums_(sums),
        operands_(operands),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        warps_(warps),
        results_(results) {}

  __device__ __forceinline__ void run(TeamState<S>& state, const PartialView<S>& to, int split) const {
    publish(state);
    __syncthreads();
    rescale(state, to, split);
#pragma unroll
    for (int tile = 0; tile < S::kKeyTiles; ++tile) {
      if (tile > 0) __syncthreads();
      write_operands(state, tile);
      __syncthreads();
      add_up_channels(tile, to, split);
    }
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

  __device__ __forceinline__ void publish(const TeamState<S>& state) const {
    const int g = lane() / 4, t = lane() % 4;
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
      const float own_sum = sum_over_tokens(state.sum[i]);
      float zero[2];
      for (int c = 0; c < 2; ++c) {
        zero[c] = S::kWeightBytes ? sum_over_tokens(state.zero[0][c]) : state.zero[i / 2][(2 * c + i % 2) % state.kOut];
      }
      if (g > 0) continue;
      sums_.sum[4 * i + t][warp_] = own_sum;
      sums_.highest[4 * i + t][warp_ / S::kTeam] = state.highest[i];
#pragma unroll
      for (int c = 0; c < 2; ++c) sums_.zero[c][4 * i + t][warp_] = zero[c];
    }
  }
  /// Makes the state relative to the highest team of each head. A lane reads what warp lane / 4 has published of the
  /// lane's head; one warp adds up the heads of a tile.
  __device__ __forceinline__ void rescale(TeamState<S>& state, const PartialView<S>& to, int split) const {
    const int of_warp = lane() / 4;
    float factors[S::kKeyTiles];
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
      const int head = 4 * i + lane() % 4;
      const float theirs = of_warp < warps_ ? sums_.highest[head][of_warp / S::kTeam] : -INFINITY;
      float top = theirs;
      for (int step = 4; step < kWarp; step *= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, step));
      factors[i] = rescaling(state.highest[i], top);
      if (warp_ == i % warps_) add_up_head(head, rescaling(theirs, top), top, to, split);
    }
    state.scale(factors);
  }
  __device__ __forceinline__ void add_up_head(int head, float factor, float top, const PartialView<S>& to,
                                              int split) const {
    const int of_warp = lane() / 4;
    const auto total = [&](const float(&each)[kMostDecodeWarps]) {
      return sum_over_tokens(of_warp < warps_ ? factor * each[of_warp] : 0.0F);
    };
    const float sum = total(sums_.sum[head]), wide = total(sums_.zero[0][head]), narrow = total(sums_.zero[1][head]);
    if (of_warp > 0) return;
    sums_.total_zero[0][head] = wide, sums_.total_zero[1][head] = narrow;
    if (head < to.heads) to.sum(split, head) = sum, to.highest(split, head) = top;
  }

  /// Rows of the warp's operands for four heads, to the results of its team: [head][row of an operand].
  __device__ __forceinline__ void write_operands(const TeamState<S>& state, int tile) const {
    const int g = lane() / 4, t = lane() % 4, rank = warp_ % S::kTeam;
    float* const own = results_ + (warp_ / S::kTeam * 4 + t) * kOperandStride<S>;
#pragma unroll
    for (int k = 0; k < S::kOwnPairs; ++k) {
      const int pair = S::kTeam * k + rank;
      if (pair >= operands_.pairs.values) break;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float* const out = state.out[k][i][tile / 2] + tile % 2;
        own[16 * (2 * pair + i) + g] = out[0];
        own[16 * (2 * pair + i) + g + 8] = out[state.kOut / 2];
      }
    }
  }

  /// A thread takes a channel of two heads.
  __device__ __forceinline__ void add_up_channels(int tile, const PartialView<S>& to, int split) const {
    const int items = min(2, (to.heads - 4 * tile + 1) / 2) * S::kDim;
    for (int item = static_cast<int>(threadIdx.x); item < items; item += static_cast<int>(blockDim.x)) {
      const int channel = item % S::kDim, block = channel / 8, j = channel % 8, head = item / S::kDim * 2;
      const float* const rows = results_ + head * kOperandStride<S>;
      float totals[2] = {};
      for (int i = block == 0 ? 0 : operands_.block_end[block - 1]; i < operands_.block_end[block]; ++i) {
        const CodedValuePart part = operands_.part[i];
        const float* const from = rows + part.slot + (part.in_half != 0 ? j / 2 + 8 * (j % 2) : j);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float sum = -sums_.total_zero[part.narrow][4 * tile + head + h] * part.middle;
#pragma unroll
          for (int n = 0; n < TeamSums<S>::kTeams; ++n) {
            if (n < warps_ / S::kTeam) sum += from[(4 * n + h) * kOperandStride<S>];
          }
          totals[h] += sum * part.unit;
        }
      }
      const float unit = operands_.value_step[channel] * 0x1p24F;
      float* const own = to.out(split, tile) + head * S::kDim + channel;
      own[0] = totals[0] * unit, own[S::kDim] = totals[1] * unit;  // of two heads, also where there is only one
    }
  }

  TeamSums<S>& sums_;
  const CodedOperands<S>& operands_;
  int warp_, warps_;
  float* results_;
};

}  // namespace oscar::cuda
