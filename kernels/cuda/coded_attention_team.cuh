// SPDX-License-Identifier: MIT
// Teams of warps of the coded decode kernel, and how a block adds them up.
#pragma once

#include "kernels/cuda/coded_attention_scores.cuh"
#include "kernels/cuda/coded_attention_turned.cuh"
#include "kernels/cuda/split_merge.cuh"

namespace oscar::cuda {

// A team of warps on its way through packed rows of the coded cache. Each warp computes the scores of 32 or 64 tokens
// of its own and hands the weights over in shared memory; then each multiplies the weights of all tokens of the team
// with its own part of the values' operands. So many warps have few registers of outputs each.

/// What a warp of a team has computed.
template <class S>
struct TeamState {
  float out[S::kOwnPairs][2][S::kValueTiles][4];  // rows of its operands, over the team's tokens
  /// Sums of the weights that values are multiplied with, over this warp's tokens. Columns as in `out`; rows 0 to 7
  /// have the first set of weights, rows 8 to 15 the second.
  float zero[S::kValueTiles][4];
  float sum[S::kKeyTiles];      // of weights, of this lane's tokens
  float highest[S::kKeyTiles];  // weights are 2^(score - highest), the same in the whole team

  __device__ TeamState() {
    for (auto& pair : out) {
      for (auto& operand : pair) {
        for (auto& tile : operand) tile[0] = tile[1] = tile[2] = tile[3] = 0;
      }
    }
    for (auto& tile : zero) tile[0] = tile[1] = tile[2] = tile[3] = 0;
    for (int i = 0; i < S::kKeyTiles; ++i) sum[i] = 0, highest[i] = -INFINITY;
  }

  /// factors: of the lane's head of each key tile.
  __device__ __forceinline__ void scale(const float (&factors)[S::kKeyTiles]) {
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) sum[i] *= factors[i];
#pragma unroll
    for (int n = 0; n < S::kValueTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        constexpr int kLast = S::kKeyTiles - 1;
        const float factor = factors[S::kClassColumns ? 0 : 2 * n + c % 2 > kLast ? kLast : 2 * n + c % 2];
        zero[n][c] *= factor;
#pragma unroll
        for (auto& pair : out) pair[0][n][c] *= factor, pair[1][n][c] *= factor;
      }
    }
  }
};

/// What the warps of a team tell each other.
template <class S>
struct TeamShared {
  float tops[S::kTeam][S::kHeads];  // the largest scores of each warp
  bool high[S::kTeam];              // whether they are too high
};

/// One warp of a team. Barrier number `barrier` is the team's.
template <class S>
class CodedTeam {
 public:
  using Copies = CodedCopies<S>;
  static constexpr int kStep = Copies::kStep;

  /// copied: p.warp_bytes for each warp of the team; shared: of the team; first_position: of the history's first token,
  /// where keys turn.
  __device__ CodedTeam(const CodedParams& p, Copies& copies, unsigned char* copied, int rank, int barrier,
                       int first_position, TeamShared<S>& shared)
      : copies_(copies),
        shared_(shared),
        first_position_(first_position),
        stage_bytes_(p.stage_bytes),
        warp_bytes_(p.warp_bytes),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        rank_(rank),
        barrier_(barrier),
        team_(static_cast<unsigned>(__cvta_generic_to_shared(copied))),
        scores_(own() + static_cast<unsigned>(S::kStages * p.stage_bytes)) {}

  /// Takes the operands of keys and values, and what keys are multiplied with: what take() of the scores takes; all are
  /// in shared memory.
  template <class... Queries>
  __device__ __forceinline__ void take(const CodedOperands<S>& operands, const Queries&... queries) {
    values_ = static_cast<unsigned>(__cvta_generic_to_shared(operands.value));
    value_pairs_ = uniform(operands.pairs.values);
    scores_.take(operands, queries...);
  }

  /// Begins to copy the first step, whose pages are being looked up, in two groups: keys and values.
  __device__ __forceinline__ void start() const { copy(own()); }

  /// All steps of the team, whose first copies have started.
  __device__ __forceinline__ void run(TeamState<S>& state) {
    unsigned stage = 0;
    for (int left = copies_.tokens() + rank_ * kStep; left > 0; left -= copies_.stride()) {
      copies_.look_ahead();
      wait_for_copies<1>();
      __syncwarp();  // every lane's copies of the keys are there
      float scores[S::kKeyTiles][S::kHalves][2];
      const int own_left = left - rank_ * kStep;
      scores_.find(own() + stage, copies_.scales(), own_left, first_position_ + copies_.end() - own_left, scores);
      const unsigned next = S::kStages == 1 ? 0 : static_cast<unsigned>(stage_bytes_) - stage;
      if constexpr (S::kStages == 1) {
        __syncwarp();  // every lane has read the keys
        copies_.copy_keys(own());
        raise(scores, state);
        weigh(scores, state);
        wait_for_copies<1>();  // for the values
      } else {
        raise(scores, state);  // all warps have done with the values of the step before
        copy(own() + next);
        weigh(scores, state);
        wait_for_copies<2>();
      }
      sync();
      OwnWeights weights;
      add_weights(state, weights);
      add_values(stage, weights, state);
      if constexpr (S::kStages == 1) {
        sync();  // every warp of the team has read these values and weights
        copies_.copy_values(own());
      }
      stage = next;
    }
  }

 private:
  __device__ __forceinline__ void copy(unsigned stage) const {
    copies_.copy_keys(stage);
    copies_.copy_values(stage);
  }
  __device__ unsigned own() const { return team_ + static_cast<unsigned>(rank_ * warp_bytes_); }
  __device__ void sync() const {
    if (S::kTeam == 1) return __syncwarp();
    asm volatile("bar.sync %0, %1;\n" ::"r"(barrier_), "n"(kWarp * S::kTeam) : "memory");
  }
  /// sync(); whether x holds in any lane of the team.
  __device__ bool sync_any(bool x) const {
    bool any = __any_sync(kAllLanes, x) != 0;
    if (S::kTeam == 1) return any;
    if (lane_ == 0) shared_.high[rank_] = any;
    sync();
#pragma unroll
    for (int m = 0; m < S::kTeam; ++m) any |= shared_.high[m];
    return any;
  }

  /// Raises the state of the whole team, as WindowState::raise() does that of a warp.
  __device__ __forceinline__ void raise(const float (&scores)[S::kKeyTiles][S::kHalves][2], TeamState<S>& state) const {
    constexpr float kHeadroom = 8;  // float16 holds 2^8 as well as 1
    float tops[S::kKeyTiles];
    bool high = false;
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
      tops[i] = scores[i][0][0];
#pragma unroll
      for (int n = 1; n < 2 * S::kHalves; ++n) tops[i] = fmaxf(tops[i], scores[i][n / 2][n % 2]);
      tops[i] *= scores_.unit(i);
      high |= tops[i] > state.highest[i] + kHeadroom;
    }
    if (!sync_any(high)) return;
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
      for (int step = 4; step < kWarp; step *= 2) tops[i] = fmaxf(tops[i], __shfl_xor_sync(kAllLanes, tops[i], step));
      if (lane_ < 4) shared_.tops[rank_][4 * i + lane_] = tops[i];
    }
    sync();
    float factors[S::kKeyTiles];
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
      float reached = state.highest[i];
#pragma unroll
      for (int m = 0; m < S::kTeam; ++m) reached = fmaxf(reached, shared_.tops[m][4 * i + lane_ % 4]);
      factors[i] = reached == -INFINITY ? 1.0F : fast_exp2(state.highest[i] - reached);
      state.highest[i] = reached;
    }
    state.scale(factors);
  }

  /// Scores to weights times the values' scales, in shared memory: a set is rows (token, 8 heads) of float16 for each
  /// value tile, of kStep tokens. If there are columns enough, the classes are neighbouring columns of one set: 2t is
  /// head t with the wide scale, 2t + 1 with the narrow one. Else each class has a set, whose column 2t is head t of
  /// the first key tile, 2t + 1 of the second. A weight is 2^8 at most, a scale less than 2^8: float16 holds the
  /// product.
  __device__ __forceinline__ void weigh(const float (&scores)[S::kKeyTiles][S::kHalves][2], TeamState<S>& state) const {
    const unsigned to =
        own() + static_cast<unsigned>(S::kStages * stage_bytes_) + 16 * kStep + lane_ / 4 * 16 + 4 * (lane_ % 4);
    float2 scale[2 * S::kHalves];  // loaded before the first store, so that they are one wait
#pragma unroll
    for (int k = 0; k < 2 * S::kHalves; ++k) scale[k] = scores_.scales(k / 2, k % 2, 1);
#pragma unroll
    for (int k = 0; k < 2 * S::kHalves; ++k) {
      const unsigned row = S::kTurns ? scores_.place(k / 2, k % 2) + 16 * kStep + 4 * (lane_ % 4)
                                     : to + 16 * (16 * (k / 2) + 8 * (k % 2));
      float weight[2 * S::kValueTiles] = {};  // of an odd tile: 0
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) {
        weight[i] = fast_exp2(__fmaf_rn(scores[i][k / 2][k % 2], scores_.unit(i), -state.highest[i]));
        state.sum[i] += weight[i];
      }
      if constexpr (S::kClassColumns) {
        store_shared_word(row, pack_f16(weight[0] * scale[k].x, weight[0] * scale[k].y));
      } else {
#pragma unroll
        for (int n = 0; n < S::kValueTiles; ++n) {
          const float first = weight[2 * n], second = weight[2 * n + 1];
          store_shared_word(row + kSetBytes * n, pack_f16(first * scale[k].x, second * scale[k].x));
          store_shared_word(row + kSetBytes * (S::kValueTiles + n), pack_f16(first * scale[k].y, second * scale[k].y));
        }
      }
    }
  }
  static constexpr int kSetBytes = 16 * kStep;  // of a value tile

  /// 32 tokens' weights of a value tile: two right operands of 16 tokens.
  __device__ __forceinline__ void load_weights(unsigned warp, int set, int tile, int group, unsigned (&b)[4]) const {
    load_matrices<true>(warp + static_cast<unsigned>(S::kStages * stage_bytes_) + 16 * kStep +
                            kSetBytes * (set * S::kValueTiles + tile) + 512 * group,
                        b);
  }

  /// Right operands of the products with values. With few heads a warp keeps those of a step; of more heads they would
  /// take too many registers.
  struct OwnWeights {
    static constexpr bool kKept = S::kClassColumns;  // one set of one tile
    unsigned of[kKept ? Copies::kPlaneFactor : 1][4];
  };

  /// Adds up this warp's weights. They count as they were rounded, so that the middle of the codes goes off exactly.
  __device__ __forceinline__ void add_weights(TeamState<S>& state, OwnWeights& weights) const {
    constexpr unsigned kOnes = 0x00010001;  // 2^-24, as a unit of a code
    const unsigned warp = own() + 16 * lane_;
#pragma unroll
    for (int k = 0; k < S::kWeightSets * S::kValueTiles * Copies::kPlaneFactor; ++k) {
      const int group = k % Copies::kPlaneFactor, tile = k / Copies::kPlaneFactor % S::kValueTiles;
      const int set = k / Copies::kPlaneFactor / S::kValueTiles;
      const unsigned low = set == 0 ? kOnes : 0, high = set == 1 ? kOnes : 0;
      unsigned(&b)[4] = weights.of[OwnWeights::kKept ? k : 0];
      load_weights(warp, set, tile, group, b);
      mma<Half::kFloat16>(state.zero[tile], low, high, low, high, b[0], b[1]);
      mma<Half::kFloat16>(state.zero[tile], low, high, low, high, b[2], b[3]);
    }
  }

  /// out += V^T P^T for the team's rows and this warp's operands.
  __device__ __forceinline__ void add_values(unsigned stage, const OwnWeights& weights, TeamState<S>& state) const {
#pragma unroll
    for (int k = 0; k < S::kOwnPairs; ++k) {
      if (k > 0 && S::kTeam * k + rank_ >= value_pairs_) break;  // a head without values has an empty pair
      const uint4 pair = load_shared(values_ + (S::kTeam * k + rank_) * sizeof(CodedValuePair));
      const unsigned low[2] = {pair.x & kValueBits, pair.z & kValueBits};
      const unsigned high[2] = {pair.y & kValueBits, pair.w & kValueBits};
      const unsigned plane = stage + Copies::kPlaneBytes * (pair.x >> 24);
      unsigned warp = kept(team_ + 16 * lane_);
#pragma unroll
      for (int m = 0; m < S::kTeam; ++m, warp += static_cast<unsigned>(warp_bytes_)) {
#pragma unroll
        for (int group = 0; group < Copies::kPlaneFactor; ++group) {
          unsigned x[4];
          load_matrices<true>(warp + plane + 512 * group, x);
          unsigned b[2][S::kValueTiles][4];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int set = S::kClassColumns || (i == 0 ? pair.y : pair.w) >> 24 == 0 ? 0 : 1;
#pragma unroll
            for (int n = 0; n < S::kValueTiles; ++n) {
              if constexpr (OwnWeights::kKept) {
#pragma unroll
                for (int c = 0; c < 4; ++c) b[i][n][c] = weights.of[group][c];
              } else {
                load_weights(warp, set, n, group, b[i][n]);
              }
            }
          }
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const unsigned first = x[2 * half], second = x[2 * half + 1];
            const unsigned first_high = first >> 8, second_high = second >> 8;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
              for (int n = 0; n < S::kValueTiles; ++n) {
                const unsigned(&by)[4] = b[S::kClassColumns ? 0 : i][n];
                mma<Half::kFloat16>(state.out[k][i][n], first & low[i], first_high & high[i], second & low[i],
                                    second_high & high[i], by[2 * half], by[2 * half + 1]);
              }
            }
          }
        }
      }
    }
  }

  Copies& copies_;
  TeamShared<S>& shared_;
  int first_position_;
  int stage_bytes_, warp_bytes_, lane_, rank_, barrier_;
  unsigned team_;  // the team's copies in shared memory
  std::conditional_t<S::kTurns, TurnedScores<S>, CodedScores<S>> scores_;
  unsigned values_;  // the operands of the values in shared memory
  int value_pairs_;
};

// How a block of the coded decode kernel adds up its teams: rows of operands become channels once a block.

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
      if (g > 0) continue;
      sums_.sum[4 * i + t][warp_] = own_sum;
      sums_.highest[4 * i + t][warp_ / S::kTeam] = state.highest[i];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        sums_.zero[c][4 * i + t][warp_] = S::kClassColumns ? state.zero[0][c] : state.zero[i / 2][2 * c + i % 2];
      }
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
        const float(&out)[4] = state.out[k][i][tile / 2];
        const bool second = S::kClassColumns ? operands_.value[pair].mask[i].high >> 24 != 0 : tile % 2 == 1;
        own[16 * (2 * pair + i) + g] = second ? out[1] : out[0];
        own[16 * (2 * pair + i) + g + 8] = second ? out[3] : out[2];
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
