// SPDX-License-Identifier: MIT
// How a block of the coded decode kernel adds up its teams: rows of operands become channels once a block.
#pragma once

#include "kernels/cuda/coded_attention_team.cuh"
#include "kernels/cuda/int2_decode_kernel.cuh"

namespace oscar::cuda {

/// Floats of a head in a team's results by operand; + 8 against bank conflicts.
template <class S>
inline constexpr int kOperandStride = 16 * S::kOperands + 8;
/// Bytes of shared memory of a team that TeamMerge needs.
template <class S>
inline constexpr int kTeamMergeBytes = 4 * kOperandStride<S> * 4;

template <class S>
struct TeamSums {
  static constexpr int kTeams = kMostDecodeWarps / S::kTeam;
  TeamShared<S> of_team[kTeams];
  float highest[S::kHeads][kTeams];            // of each team
  float sum[S::kHeads][kMostDecodeWarps];      // of each warp's weights
  float zero[2][S::kHeads][kMostDecodeWarps];  // of each warp's weights times the scales of a class
  float total_zero[2][S::kHeads];              // relative to the highest team
};

/// Adds up the block's teams: `state` of each warp, at last in `to`. results: kTeamMergeBytes for each team.
template <class S>
class TeamMerge {
 public:
  __device__ TeamMerge(TeamSums<S>& sums, const CodedOperands<S>& operands, int value_pairs, int warps, float* results)
      : sums_(sums),
        operands_(operands),
        value_pairs_(value_pairs),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        teams_(warps / S::kTeam),
        results_(results) {}

  __device__ __forceinline__ void run(TeamState<S>& state, PartialView to) const {
    publish(state);
    __syncwarp();
    __syncthreads();
    float factors[S::kKeyTiles];
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) factors[i] = factor(4 * i + lane() % 4, warp_ / S::kTeam);
    state.scale(factors);
    add_up_heads(to);
    __syncwarp();
#pragma unroll
    for (int tile = 0; tile < S::kKeyTiles; ++tile) {
      if (tile > 0) __syncthreads();
      write_operands(state, tile);
      __syncthreads();
      add_up_channels(tile, to);
    }
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

  __device__ __forceinline__ void publish(const TeamState<S>& state) const {
    const int g = lane() / 4, t = lane() % 4;
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
      const float own_sum = sum_over_tokens(state.sum[i]);
      if (g > 0) continue;
      sums_.sum[4 * i + t][warp_] = own_sum;
      sums_.highest[4 * i + t][warp_ / S::kTeam] = state.highest[i];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        sums_.zero[c][4 * i + t][warp_] = S::kClassColumns ? state.zero[0][c] : state.zero[i / 2][2 * c + i % 2];
      }
    }
  }
  __device__ __forceinline__ float top(int head) const {
    float highest = sums_.highest[head][0];
#pragma unroll
    for (int n = 1; n < TeamSums<S>::kTeams; ++n)
      highest = n < teams_ ? fmaxf(highest, sums_.highest[head][n]) : highest;
    return highest;
  }
  /// What the results of a team must be multiplied with.
  __device__ __forceinline__ float factor(int head, int team) const {
    return rescaling(sums_.highest[head][team], top(head));
  }

  __device__ __forceinline__ void add_up_heads(PartialView to) const {
    const int head = static_cast<int>(threadIdx.x);
    if (head >= S::kHeads) return;
    float sum = 0, zero[2] = {};
    for (int w = 0; w < teams_ * S::kTeam; ++w) {
      const float by = factor(head, w / S::kTeam);
      sum += by * sums_.sum[head][w];
      zero[0] += by * sums_.zero[0][head][w], zero[1] += by * sums_.zero[1][head][w];
    }
    sums_.total_zero[0][head] = zero[0], sums_.total_zero[1][head] = zero[1];
    if (head < to.heads) to.sum(head) = sum, to.highest(head) = top(head);
  }

  /// Rows of the warp's operands for four heads, to the results of its team: [head][row of an operand].
  __device__ __forceinline__ void write_operands(const TeamState<S>& state, int tile) const {
    const int g = lane() / 4, t = lane() % 4, rank = warp_ % S::kTeam;
    float* const own = results_ + (warp_ / S::kTeam * 4 + t) * kOperandStride<S>;
#pragma unroll
    for (int k = 0; k < S::kOwnPairs; ++k) {
      const int pair = S::kTeam * k + rank;
      if (pair >= value_pairs_) break;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float(&out)[4] = state.out[k][i][tile / 2];
        const bool second = S::kClassColumns ? operands_.value[pair].mask[i].high >> 24 != 0 : tile % 2 == 1;
        own[16 * (2 * pair + i) + g] = second ? out[1] : out[0];
        own[16 * (2 * pair + i) + g + 8] = second ? out[3] : out[2];
      }
    }
  }

  __device__ __forceinline__ void add_up_channels(int tile, PartialView to) const {
    const int items = min(4, to.heads - 4 * tile) * S::kDim;
    for (int item = static_cast<int>(threadIdx.x); item < items; item += static_cast<int>(blockDim.x)) {
      const int head = item / S::kDim, channel = item % S::kDim, block = channel / 8, j = channel % 8;
      float total = 0;
      for (int i = block == 0 ? 0 : operands_.block_end[block - 1]; i < operands_.block_end[block]; ++i) {
        const CodedValuePart part = operands_.part[i];
        const float* from =
            results_ + head * kOperandStride<S> + part.slot + (part.in_half != 0 ? j / 2 + 8 * (j % 2) : j);
        float sum = -sums_.total_zero[part.narrow][4 * tile + head] * part.middle;
#pragma unroll
        for (int n = 0; n < TeamSums<S>::kTeams; ++n) {
          if (n < teams_) sum += from[4 * n * kOperandStride<S>];
        }
        total += sum * part.unit;
      }
      to.out()[(4 * tile + head) * S::kDim + channel] = total * operands_.value_step[channel] * 0x1p24F;
    }
  }

  TeamSums<S>& sums_;
  const CodedOperands<S>& operands_;
  int value_pairs_, warp_, teams_;
  float* results_;
};

}  // namespace oscar::cuda
