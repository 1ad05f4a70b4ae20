// SPDX-License-Identifier: MIT
// Teams of warps of the coded decode kernel.
#pragma once

#include "kernels/cuda/coded_attention_scores.cuh"
#include "kernels/cuda/coded_attention_turned.cuh"

namespace oscar::cuda {

// A team of warps on its way through packed rows of the coded cache. Each warp computes the scores of 32 or 64 tokens
// of its own and hands the weights over in shared memory; then each multiplies the weights of all tokens of the team
// with its own part of the values' operands. So many warps have few registers of outputs each.
//
// With up to eight heads a team is one warp. With up to four it keeps weights in registers, as integers of two bytes
// that are relative to the largest of a step: 32 tokens are one product, whose columns 2t and 2t + 1 have the high and
// the low bytes of head t. Else weights are float16, and 16 tokens of eight heads are one product.

/// What a warp of a team has computed.
template <class S>
struct TeamState {
  static constexpr int kOut = S::kWeightBytes ? 2 : 4;  // of the lane's head rows g and g + 8, or as products have them
  float out[S::kOwnPairs][2][S::kValueTiles][kOut];     // rows of its operands, over the team's tokens
  /// Sums of the weights that values are multiplied with, over this warp's tokens. With bytes: of this lane's tokens,
  /// by class. Else columns as in `out`; rows 0 to 7 have the first set of weights, rows 8 to 15 the second.
  float zero[S::kValueTiles][kOut];
  float sum[S::kKeyTiles];      // of weights, of this lane's tokens
  float highest[S::kKeyTiles];  // weights are 2^(score - highest), the same in the whole team

  __device__ TeamState() {
    for (int c = 0; c < kOut; ++c) {
      for (auto& pair : out) {
        for (auto& operand : pair) {
          for (auto& tile : operand) tile[c] = 0;
        }
      }
      for (auto& tile : zero) tile[c] = 0;
    }
    for (int i = 0; i < S::kKeyTiles; ++i) sum[i] = 0, highest[i] = -INFINITY;
  }

  /// factors: of the lane's head of each key tile.
  __device__ __forceinline__ void scale(const float (&factors)[S::kKeyTiles]) {
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) sum[i] *= factors[i];
#pragma unroll
    for (int n = 0; n < S::kValueTiles; ++n) {
#pragma unroll
      for (int c = 0; c < kOut; ++c) {
        constexpr int kLast = S::kKeyTiles - 1;
        const float factor = factors[2 * n + c % 2 > kLast ? kLast : 2 * n + c % 2];
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
        soft_cap_(p.soft_cap),
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
    kinds_ = static_cast<unsigned>(__cvta_generic_to_shared(operands.pairs.value));
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
      scores_.find(own() + stage, copies_.scales(), own_left, first_position_ + copies_.end() - own_left, scores,
                   [&] { sync(); });
      if (soft_cap_ > 0) [[unlikely]]
        cap(scores);
      scores_.drop_behind(own_left, scores);
      const unsigned next = S::kStages == 1 ? 0 : static_cast<unsigned>(stage_bytes_) - stage;
      OwnWeights weights;
      if constexpr (S::kStages == 1) {
        __syncwarp();  // every lane has read the keys
        copies_.copy_keys(own());
        if constexpr (S::kWeightBytes) {
          weigh_bytes(scores[0], state, weights);
        } else {
          raise(scores, state);
          weigh(scores, state);
        }
        wait_for_copies<1>();  // for the values
      } else {
        raise(scores, state);  // all warps have done with the values of the step before
        copy(own() + next);
        weigh(scores, state);
        wait_for_copies<2>();
      }
      sync();
      if constexpr (S::kWeightBytes) {
        add_bytes(stage, weights, state);
      } else {
        add_weights(state);
        add_values(stage, state);
      }
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

  /// Caps what scores are worth; they stay over unit(), which is not finite where a query is not, and may be too small
  /// for a quotient.
  __device__ __forceinline__ void cap(float (&scores)[S::kKeyTiles][S::kHalves][2]) const {
    constexpr float kLeast = 1e-30F;
#pragma unroll
    for (int n = 0; n < 2 * S::kHalves * S::kKeyTiles; ++n) {
      const int i = n / (2 * S::kHalves);
      float& score = scores[i][n / 2 % S::kHalves][n % 2];
      score = __fdividef(soft_capped(score * scores_.unit(i), soft_cap_), fmaxf(scores_.unit(i), kLeast));
    }
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
  /// value tile, of kStep tokens. Each class has a set, whose column 2t is head t of the first key tile, 2t + 1 of the
  /// second. A weight is 2^8 at most, a scale less than 2^8: float16 holds the product.
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
#pragma unroll
      for (int n = 0; n < S::kValueTiles; ++n) {
        const float first = weight[2 * n], second = weight[2 * n + 1];
        store_shared_word(row + kSetBytes * n, pack_f16(first * scale[k].x, second * scale[k].x));
        store_shared_word(row + kSetBytes * (S::kValueTiles + n), pack_f16(first * scale[k].y, second * scale[k].y));
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

  /// Right operands of the products with values where weights are bytes: of each class those of 16 tokens each, and
  /// what a unit is worth.
  struct OwnWeights {
    unsigned of[2][S::kHalves];
    float unit[2];
  };

  /// Scores to weights times the values' scales, and the state as raise() leaves it. Both are relative to the highest
  /// of the step, so that rounding leaves out less than 2^-16 of these two's product for each token. They are added up
  /// as they were rounded, so that the middle of the codes goes off exactly.
  __device__ __forceinline__ void weigh_bytes(const float (&scores)[S::kHalves][2], TeamState<S>& state,
                                              OwnWeights& weights) const {
    constexpr float kHeadroom = 8;
    float top = scores[0][0];
#pragma unroll
    for (int k = 1; k < 2 * S::kHalves; ++k) top = fmaxf(top, scores[k / 2][k % 2]);
    top *= scores_.unit(0);
    for (int step = 4; step < kWarp; step *= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, step));
    if (__any_sync(kAllLanes, top > state.highest[0] + kHeadroom)) {
      const float reached = fmaxf(top, state.highest[0]), factor = fast_exp2(state.highest[0] - reached);
      state.highest[0] = reached;
      state.scale({factor});
    }
    float sum = 0;
    unsigned rounded[2][2 * S::kHalves];  // 0x4b00XXXX is 2^23 + XXXX as float32
#pragma unroll
    for (int k = 0; k < 2 * S::kHalves; ++k) {
      const float weight = fast_exp2(__fmaf_rn(scores[k / 2][k % 2], scores_.unit(0), -top));
      const float2 scale = scores_.scales(k / 2, k % 2, 1);
      sum += weight;
      rounded[0][k] = __float_as_uint(__fmaf_rn(weight, scale.x, 0x1p23F));
      rounded[1][k] = __float_as_uint(__fmaf_rn(weight, scale.y, 0x1p23F));
    }
    const float above = top - state.highest[0];
    state.sum[0] = __fmaf_rn(sum, fast_exp2(above), state.sum[0]);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      weights.unit[c] = fast_exp2(above + scores_.value_unit(c)) * 0x1p-24F;  // as of float16 subnormals
      unsigned total = 0U - 2 * S::kHalves * 0x4b000000U;
#pragma unroll
      for (const unsigned each : rounded[c]) total += each;
      state.zero[0][c] = __fmaf_rn(static_cast<float>(static_cast<int>(total)), weights.unit[c], state.zero[0][c]);
#pragma unroll
      for (int half = 0; half < S::kHalves; ++half) {
        // Columns 2t and 2t + 1 of row g: the high bytes of tokens g and g + 8, then the low ones.
        weights.of[c][half] = transpose8(__byte_perm(rounded[c][2 * half], rounded[c][2 * half + 1], 0x4051));
      }
    }
  }

  /// out += V^T P^T with weights of bytes. Classes are selected instead of branched on: code that jumps is waited for.
  __device__ __forceinline__ void add_bytes(unsigned stage, const OwnWeights& weights, TeamState<S>& state) const {
    unsigned bytes[Copies::kPlaneFactor][4];  // of a plane
#pragma unroll
    for (int k = 0; k < S::kOwnPairs; ++k) {
      if (k > 0 && k >= value_pairs_) break;
      const unsigned kind = load_shared_half(kinds_ + k * sizeof(CodedValueKind));
      const auto is = [&](unsigned flag) { return (kind & flag << 8) != 0; };
      if (k == 0 || is(CodedValueKind::kNewPlane)) {
        load_bytes(own() + stage + Copies::kPlaneBytes * (kind & 0xff), bytes);
      }
      const uint4 masks = load_shared(values_ + k * sizeof(CodedValuePair));
      const bool narrow[] = {is(CodedValueKind::kFirstNarrow), is(CodedValueKind::kSecondNarrow)};
      int sums[2][4] = {};
#pragma unroll
      for (int n = 0; n < 2 * Copies::kPlaneFactor; ++n) {
        const int i = n % 2, group = n / 2;
        const int first = scores_.is_mirrored(2 * group) ? S::kHalves + 1 - 2 * group : 2 * group, second = first ^ 1;
        const unsigned low = i == 0 ? masks.x : masks.z, high = i == 0 ? masks.y : masks.w;
        mma_bytes<false>(sums[i], bytes[group][0] & low, bytes[group][1] & high, bytes[group][2] & low,
                         bytes[group][3] & high, narrow[i] ? weights.of[1][first] : weights.of[0][first],
                         narrow[i] ? weights.of[1][second] : weights.of[0][second]);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        float& out = state.out[k][n / 2][0][n % 2];
        const int* const sum = sums[n / 2] + n % 2 * 2;
        out = __fmaf_rn(static_cast<float>(256 * sum[0] + sum[1]), narrow[n / 2] ? weights.unit[1] : weights.unit[0],
                        out);
      }
    }
  }
  /// The bytes of 32 tokens at a time as products take them: tokens 2t, 2t + 8, 2t + 1, 2t + 9 of 16, as weights are.
  __device__ __forceinline__ void load_bytes(unsigned plane, unsigned (&bytes)[Copies::kPlaneFactor][4]) const {
#pragma unroll
    for (int group = 0; group < Copies::kPlaneFactor; ++group) {
      unsigned x[4];
      load_matrices<true>(plane + 512 * group + 16 * (scores_.is_mirrored(2 * group) ? 31 - lane_ : lane_), x);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        bytes[group][2 * half] = __byte_perm(x[2 * half], x[2 * half + 1], 0x6240);
        bytes[group][2 * half + 1] = __byte_perm(x[2 * half], x[2 * half + 1], 0x7351);
      }
    }
  }

  /// Adds up this warp's weights. They count as they were rounded, so that the middle of the codes goes off exactly.
  __device__ __forceinline__ void add_weights(TeamState<S>& state) const {
    constexpr unsigned kOnes = 0x00010001;  // 2^-24, as a unit of a code
    const unsigned warp = own() + 16 * lane_;
#pragma unroll
    for (int k = 0; k < 2 * S::kValueTiles * Copies::kPlaneFactor; ++k) {
      const int group = k % Copies::kPlaneFactor, tile = k / Copies::kPlaneFactor % S::kValueTiles;
      const int set = k / Copies::kPlaneFactor / S::kValueTiles;
      const unsigned low = set == 0 ? kOnes : 0, high = set == 1 ? kOnes : 0;
      unsigned b[4];
      load_weights(warp, set, tile, group, b);
      mma<Half::kFloat16>(state.zero[tile], low, high, low, high, b[0], b[1]);
      mma<Half::kFloat16>(state.zero[tile], low, high, low, high, b[2], b[3]);
    }
  }

  /// out += V^T P^T for the team's rows and this warp's operands.
  __device__ __forceinline__ void add_values(unsigned stage, TeamState<S>& state) const {
#pragma unroll
    for (int k = 0; k < S::kOwnPairs; ++k) {
      if (k > 0 && S::kTeam * k + rank_ >= value_pairs_) break;  // a head without values has an empty pair
      const uint4 pair = load_shared(values_ + (S::kTeam * k + rank_) * sizeof(CodedValuePair));
      const unsigned kind = load_shared_half(kinds_ + (S::kTeam * k + rank_) * sizeof(CodedValueKind));
      const unsigned low[2] = {pair.x & kPairBits, pair.z & kPairBits};
      const unsigned high[2] = {pair.y & kPairBits, pair.w & kPairBits};
      const unsigned plane = stage + Copies::kPlaneBytes * (kind & 0xff);
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
            const unsigned narrow = i == 0 ? CodedValueKind::kFirstNarrow : CodedValueKind::kSecondNarrow;
            const int set = (kind & narrow << 8) != 0 ? 1 : 0;
#pragma unroll
            for (int n = 0; n < S::kValueTiles; ++n) load_weights(warp, set, n, group, b[i][n]);
          }
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const unsigned first = x[2 * half], second = x[2 * half + 1];
            const unsigned first_high = first >> 8, second_high = second >> 8;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
              for (int n = 0; n < S::kValueTiles; ++n) {
                const unsigned(&by)[4] = b[i][n];
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
  int stage_bytes_, warp_bytes_;
  float soft_cap_;
  int lane_, rank_, barrier_;
  unsigned team_;  // the team's copies in shared memory
  std::conditional_t<S::kTurns, TurnedScores<S>, CodedScores<S>> scores_;
  unsigned values_;  // the operands of the values in shared memory
  unsigned kinds_;   // and what they are
  int value_pairs_;
};

}  // namespace oscar::cuda
