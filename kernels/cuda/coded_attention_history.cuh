// SPDX-License-Identifier: MIT
// One warp's way through packed rows of the coded cache: 32 or 64 tokens at a time, with copies of its own in flight.
// What it computes is laid out as int2_decode_warp.cuh says.
#pragma once

#include "kernels/cuda/coded_attention_copies.cuh"
#include "kernels/cuda/coded_attention_queries.cuh"

namespace oscar::cuda {

template <class S>
class CodedHistoryWarp {
 public:
  using Copies = CodedCopies<S>;
  static constexpr int kStep = Copies::kStep;

  /// shared: p.warp_bytes of this warp, to which `copies` copies.
  __device__ CodedHistoryWarp(const CodedParams& p, const CodedHeadTable& table, Copies& copies, unsigned char* shared,
                              const CodedQueries<S>& queries, const CodedOperands<S>& operands)
      : copies_(copies),
        stage_bytes_(p.stage_bytes),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        copied_(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
        scales_(kept(copied_ + static_cast<unsigned>(2 * p.stage_bytes + 16 * lane_))),
        keys_(static_cast<unsigned>(__cvta_generic_to_shared(operands.key))),
        values_(static_cast<unsigned>(__cvta_generic_to_shared(operands.value))),
        queries_(kept(queries.pairs(lane_))),
        value_pairs_(uniform(table.value_pairs)) {
#pragma unroll
    for (const int c : {kWideClass, kNarrowClass}) {
      end_[c][0] = uniform(table.key_end[c][0]), end_[c][1] = uniform(table.key_end[c][1]);
    }
    find_middles(queries);
  }

  /// All steps of the warp, whose copies have started.
  __device__ __forceinline__ void run(WarpState<S>& state) {
    unsigned stage = copied_;
    for (int left = copies_.tokens(); left > 0; left -= copies_.stride()) {
      copies_.look_ahead();
      wait_for_copies<1>();
      __syncwarp();  // every lane's copies are there
      step(stage, left, state);
      copies_.copy_ahead(stage);
      stage = 2 * copied_ + static_cast<unsigned>(stage_bytes_) - stage;
    }
  }

 private:
  /// multiply_keys() of all operands of a class.
  template <class Load>
  __device__ __forceinline__ void multiply(int of_class, const Load& load,
                                           int (&sums)[S::kKeyTiles][S::kHalves][4]) const {
    const int begin = of_class == kWideClass ? 0 : end_[kWideClass][1], *const end = end_[of_class];
    multiply_keys<false, S>(keys_, queries_, begin, end[0], load, sums);
    multiply_keys<true, S>(keys_, queries_, end[0], end[1], load, sums);
  }

  /// Products with the middle of all codes, which are to be subtracted from others.
  __device__ __forceinline__ void find_middles(const CodedQueries<S>& queries) {
    const auto ones = [](int, unsigned, unsigned(&x)[4]) { x[0] = x[1] = x[2] = x[3] = 0xffffffffU; };
#pragma unroll
    for (const int c : {kWideClass, kNarrowClass}) {
      int sums[S::kKeyTiles][S::kHalves][4] = {};
      multiply(c, ones, sums);
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) middle_[c][i] = 128 * sums[i][0][0] + sums[i][0][1] / 2;
    }
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) unit_[i] = queries.unit(4 * i + lane_ % 4);
  }

  /// Of token 16 * half + g + 8 * row the two scales of one side; a token has four: keys wide, keys narrow, values
  /// wide, values narrow.
  __device__ __forceinline__ float2 scales(int half, int row, int side) const {
    const uint2 x = load_shared_pair(scales_ - 16 * (lane_ - lane_ / 4) + 16 * (16 * half + 8 * row) + 8 * side);
    return {__uint_as_float(x.x), __uint_as_float(x.y)};
  }
  /// 2^(byte / 16 - 8) of a token's four bytes: 0x4b0000XX is 2^23 + XX as float32.
  __device__ __forceinline__ void share_scales(unsigned stage) const {
    unsigned own[Copies::kPlaneFactor];
#pragma unroll
    for (int i = 0; i < Copies::kPlaneFactor; ++i) {
      own[i] = load_shared_word(stage + copies_.scales() + 128 * i + 4 * lane_);
    }
#pragma unroll
    for (int i = 0; i < Copies::kPlaneFactor; ++i) {
      const auto scale = [&](int byte) {
        const unsigned bits = __byte_perm(own[i], 0x4b000000U, 0x7540 + byte);
        return fast_exp2(__fmaf_rn(__uint_as_float(bits), 0.0625F, -524296.0F));
      };
      store_shared(scales_ + 512 * i, {scale(0), scale(1), scale(2), scale(3)});
    }
    __syncwarp();
  }

  /// kStep tokens of the stage at `stage`, of which the first `valid` count.
  __device__ __forceinline__ void step(unsigned stage, int valid, WarpState<S>& state) const {
    const unsigned own = kept(stage + 16 * lane_);  // the lane's row in plane 0
    share_scales(stage);
    float scores[S::kKeyTiles][S::kHalves][2] = {}, tops[S::kKeyTiles];  // over unit_
    const auto load = [&](int group, unsigned offset, unsigned(&x)[4]) {
      load_matrices<false>(own + Copies::kPlaneFactor * offset + 512 * group, x);
    };
#pragma unroll
    for (const int c : {kWideClass, kNarrowClass}) {
      if ((c == kWideClass ? 0 : end_[kWideClass][1]) == end_[c][1]) continue;
      int sums[S::kKeyTiles][S::kHalves][4] = {};
      multiply(c, load, sums);
#pragma unroll
      for (int n = 0; n < 2 * S::kHalves; ++n) {
        const int half = n / 2, row = n % 2;
        const float2 s = scales(half, row, 0);
#pragma unroll
        for (int i = 0; i < S::kKeyTiles; ++i) {
          // What wraps around on the way comes back: the result is less than 2^31.
          const int(&sum)[4] = sums[i][half];
          const unsigned product = 256U * static_cast<unsigned>(sum[2 * row]) +
                                   static_cast<unsigned>(sum[2 * row + 1]) - static_cast<unsigned>(middle_[c][i]);
          scores[i][half][row] += (c == kWideClass ? s.x : s.y) * static_cast<float>(static_cast<int>(product));
        }
      }
    }
    if (valid < kStep) {
#pragma unroll
      for (int n = 0; n < 2 * S::kHalves * S::kKeyTiles; ++n) {
        const int i = n / (2 * S::kHalves), half = n / 2 % S::kHalves, row = n % 2;
        if (16 * half + lane_ / 4 + 8 * row >= valid) scores[i][half][row] = -INFINITY;
      }
    }
#pragma unroll
    for (int n = 0; n < 2 * S::kHalves * S::kKeyTiles; ++n) {
      const int i = n / (2 * S::kHalves), of_tile = n % (2 * S::kHalves);
      const float score = scores[i][of_tile / 2][of_tile % 2];
      tops[i] = of_tile == 0 ? score : fmaxf(tops[i], score);
    }
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) tops[i] *= unit_[i];
    state.raise(tops);
    Weights weights;
#pragma unroll
    for (int n = 0; n < 2 * S::kHalves; ++n) weigh(scores, n / 2, n % 2, state, weights.by[n / 2]);
    add_values(own, weights, state);
    __syncwarp();  // before the next step's copies and scales
  }

  /// Weights times the values' scales as the right operand of the products with values. If there are columns enough,
  /// the classes are neighbouring columns: 2t is head t with the wide scale, 2t + 1 with the narrow one. Else they are
  /// operands of their own.
  static constexpr bool kClassColumns = S::kClassColumns;
  static constexpr int kWeightSets = kClassColumns ? 1 : 2;
  struct Weights {
    unsigned by[S::kHalves][kWeightSets][S::kValueTiles][2];  // of 16 tokens each
  };

  /// Scores of row `row` of 16 tokens to weights times the values' scales. A weight is 2^8 at most, a scale less than
  /// 2^8: float16 holds the product.
  __device__ __forceinline__ void weigh(const float (&scores)[S::kKeyTiles][S::kHalves][2], int half, int row,
                                        WarpState<S>& state, unsigned (&by)[kWeightSets][S::kValueTiles][2]) const {
    const float2 scale = scales(half, row, 1);
    float scaled[2][2 * S::kValueTiles] = {};  // of an odd tile: 0
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
      const float weight = fast_exp2(__fmaf_rn(scores[i][half][row], unit_[i], -state.highest[i]));
      state.sum[i] += weight;
      state.zero[i][kWideClass] += scaled[kWideClass][i] = weight * scale.x;
      state.zero[i][kNarrowClass] += scaled[kNarrowClass][i] = weight * scale.y;
    }
    if constexpr (kClassColumns) {
      by[0][0][row] = transpose8(pack_f16(scaled[kWideClass][0], scaled[kNarrowClass][0]));
    } else {
#pragma unroll
      for (int n = 0; n < 2 * S::kValueTiles; ++n) {
        const float(&pair)[2 * S::kValueTiles] = scaled[n % 2];
        by[n % 2][n / 2][row] = transpose8(pack_f16(pair[n / 2 * 2], pair[n / 2 * 2 + 1]));
      }
    }
  }

  /// out += V^T P^T for the step's rows.
  __device__ __forceinline__ void add_values(unsigned own, const Weights& weights, WarpState<S>& state) const {
    uint4 next = load_shared(values_);
#pragma unroll
    for (int o = 0; o < S::kOperands; o += 2) {
      if (o / 2 >= value_pairs_) break;
      const uint4 pair = next;
      next = load_shared(values_ + static_cast<unsigned>((o / 2 + 1) * sizeof(CodedValuePair)));
      const unsigned low[2] = {pair.x & kValueBits, pair.z & kValueBits};
      const unsigned high[2] = {pair.y & kValueBits, pair.w & kValueBits};
      unsigned x[Copies::kPlaneFactor][4];
#pragma unroll
      for (int group = 0; group < Copies::kPlaneFactor; ++group) {
        load_matrices<true>(own + Copies::kPlaneBytes * (pair.x >> 24) + 512 * group, x[group]);
      }
#pragma unroll
      for (int half = 0; half < S::kHalves; ++half) {
        const unsigned first = x[half / 2][half % 2 * 2], second = x[half / 2][half % 2 * 2 + 1];
        const unsigned first_high = first >> 8, second_high = second >> 8;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const bool narrow = !kClassColumns && (i == 0 ? pair.y : pair.w) >> 24 != 0;
#pragma unroll
          for (int n = 0; n < S::kValueTiles; ++n) {
            const unsigned(&wide)[2] = weights.by[half][0][n], (&other)[2] = weights.by[half][kWeightSets - 1][n];
            mma<Half::kFloat16>(state.out[n][o + i], first & low[i], first_high & high[i], second & low[i],
                                second_high & high[i], narrow ? other[0] : wide[0], narrow ? other[1] : wide[1]);
          }
        }
      }
    }
  }

  Copies& copies_;
  int stage_bytes_, lane_;
  unsigned copied_, scales_, keys_, values_, queries_;  // where they lie in shared memory
  int value_pairs_, end_[2][2];                         // end_: of the pairs of keys, as in the table
  int middle_[2][S::kKeyTiles];                         // of products, by class
  float unit_[S::kKeyTiles];                            // what a unit of a product is worth
};

}  // namespace oscar::cuda
