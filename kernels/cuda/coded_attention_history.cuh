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
  __device__ CodedHistoryWarp(const CodedParams& p, const CodedHeadTable& table, Copies& copies, unsigned char* shared)
      : p_(p),
        copies_(copies),
        target_(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        key_pairs_(table.key_pairs),
        wide_key_pairs_(table.wide_key_pairs),
        value_pairs_(table.value_pairs) {}

  /// All steps of the warp, whose copies have started.
  __device__ __forceinline__ void run(const CodedQueries<S>& queries, const CodedOperands<S>& operands,
                                      WarpState<S>& state) {
    const Middles middles(*this, queries, operands);
    int stage = 0;
    for (int left = copies_.tokens(); left > 0; left -= copies_.stride()) {
      copies_.look_ahead();
      wait_for_copies<1>();
      __syncwarp();  // every lane's copies are there
      step(stage, left, queries, operands, middles, state);
      copies_.copy_ahead(stage);
      stage = p_.stage_bytes - stage;
    }
  }

 private:
  /// What a step subtracts from products: those of the middle of all codes, by class of channels.
  struct Middles {
    int product[2][S::kKeyTiles];
    float unit[S::kKeyTiles];

    __device__ __forceinline__ Middles(const CodedHistoryWarp& warp, const CodedQueries<S>& queries,
                                       const CodedOperands<S>& operands) {
      const auto ones = [](int, unsigned, unsigned(&x)[4]) { x[0] = x[1] = x[2] = x[3] = 0xffffffffU; };
#pragma unroll
      for (const int c : {kWideClass, kNarrowClass}) {
        int sums[S::kKeyTiles][S::kHalves][4] = {};
        warp.multiply(c, queries, operands, ones, sums);
#pragma unroll
        for (int i = 0; i < S::kKeyTiles; ++i) product[c][i] = 128 * sums[i][0][0] + sums[i][0][1] / 2;
      }
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) unit[i] = queries.unit(4 * i + warp.lane_ % 4);
    }
  };

  /// multiply_keys() of the pairs of one class.
  template <class Load>
  __device__ __forceinline__ void multiply(int of_class, const CodedQueries<S>& queries,
                                           const CodedOperands<S>& operands, const Load& load,
                                           int (&sums)[S::kKeyTiles][S::kHalves][4]) const {
    const bool wide = of_class == kWideClass;
    multiply_keys<S>(queries, operands, wide ? 0 : wide_key_pairs_, wide ? wide_key_pairs_ : key_pairs_, lane_, load,
                     sums);
  }

  /// A token's scales: keys wide, keys narrow, values wide, values narrow.
  __device__ __forceinline__ float4* shared_scales() const {
    return reinterpret_cast<float4*>(shared_ + 2 * p_.stage_bytes);
  }
  /// Of token 16 * half + g + 8 * row, the two of one side.
  __device__ __forceinline__ float2 scales(int half, int row, int side) const {
    return reinterpret_cast<const float2*>(shared_scales() + 16 * half + 8 * row + lane_ / 4)[side];
  }
  __device__ __forceinline__ void share_scales(const unsigned char* bytes) const {
#pragma unroll
    for (int i = 0; i < Copies::kPlaneFactor; ++i) {
      const unsigned own = reinterpret_cast<const unsigned*>(bytes)[32 * i + lane_];
      const auto scale = [&](int byte) {
        return fast_exp2(static_cast<float>(own >> 8 * byte & 0xffU) * 0.0625F - 8.0F);
      };
      shared_scales()[32 * i + lane_] = {scale(0), scale(1), scale(2), scale(3)};
    }
    __syncwarp();
  }

  /// `own`: the lane's row in plane 0 of the step.
  /// products[class][tile][half][row] = the sum of q / unit * (code - middle) over the class's channels, for the tokens
  /// 16 * half + g + 8 * row and the lane's head of key tile `tile`.
  __device__ __forceinline__ void find_products(unsigned own, const CodedQueries<S>& queries,
                                                const CodedOperands<S>& operands, const Middles& middles,
                                                float (&products)[2][S::kKeyTiles][S::kHalves][2]) const {
    const auto load = [&](int group, unsigned offset, unsigned(&x)[4]) {
      load_matrices<false>(own + offset + 512 * group, x);
    };
#pragma unroll
    for (const int c : {kWideClass, kNarrowClass}) {
      int sums[S::kKeyTiles][S::kHalves][4] = {};
      multiply(c, queries, operands, load, sums);
#pragma unroll
      for (int n = 0; n < 2 * S::kHalves * S::kKeyTiles; ++n) {
        const int i = n / (2 * S::kHalves), half = n / 2 % S::kHalves, row = n % 2;
        const int(&sum)[4] = sums[i][half];
        // What wraps around on the way comes back: the result is less than 2^31.
        const unsigned product = 256U * static_cast<unsigned>(sum[2 * row]) + static_cast<unsigned>(sum[2 * row + 1]) -
                                 static_cast<unsigned>(middles.product[c][i]);
        products[c][i][half][row] = static_cast<float>(static_cast<int>(product));
      }
    }
  }

  /// kStep tokens, of which the first `valid` count.
  __device__ __forceinline__ void step(int stage, int valid, const CodedQueries<S>& queries,
                                       const CodedOperands<S>& operands, const Middles& middles,
                                       WarpState<S>& state) const {
    const unsigned own = target_ + static_cast<unsigned>(stage + Copies::kScaleBytes + lane_ * 16);
    share_scales(shared_ + stage);
    float scores[S::kHalves][S::kKeyTiles][2], tops[S::kKeyTiles];
    {
      float products[2][S::kKeyTiles][S::kHalves][2];
      find_products(own, queries, operands, middles, products);
#pragma unroll
      for (int n = 0; n < 2 * S::kHalves; ++n) {
        const int half = n / 2, row = n % 2;
        const float2 s = scales(half, row, 0);
#pragma unroll
        for (int i = 0; i < S::kKeyTiles; ++i) {
          scores[half][i][row] = middles.unit[i] * (s.x * products[0][i][half][row] + s.y * products[1][i][half][row]);
        }
      }
    }
    if (valid < kStep) {
#pragma unroll
      for (int n = 0; n < 2 * S::kHalves * S::kKeyTiles; ++n) {
        const int i = n / (2 * S::kHalves), half = n / 2 % S::kHalves, row = n % 2;
        if (16 * half + lane_ / 4 + 8 * row >= valid) scores[half][i][row] = -INFINITY;
      }
    }
#pragma unroll
    for (int n = 0; n < 2 * S::kHalves * S::kKeyTiles; ++n) {
      const int i = n / (2 * S::kHalves), of_tile = n % (2 * S::kHalves);
      const float score = scores[of_tile / 2][i][of_tile % 2];
      tops[i] = of_tile == 0 ? score : fmaxf(tops[i], score);
    }
    state.raise(tops);
    Weights weights;
#pragma unroll
    for (int n = 0; n < 2 * S::kHalves; ++n) {
      weigh(scores[n / 2], n % 2, scales(n / 2, n % 2, 1), state, weights.by[n / 2]);
    }
    add_values(own, operands, weights, state);
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
  __device__ __forceinline__ void weigh(const float (&scores)[S::kKeyTiles][2], int row, float2 scales,
                                        WarpState<S>& state, unsigned (&by)[kWeightSets][S::kValueTiles][2]) const {
    float scaled[2][2 * S::kValueTiles] = {};  // of an odd tile: 0
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
      const float weight = fast_exp2(scores[i][row] - state.highest[i]);
      state.sum[i] += weight;
      state.zero[i][kWideClass] += scaled[kWideClass][i] = weight * scales.x;
      state.zero[i][kNarrowClass] += scaled[kNarrowClass][i] = weight * scales.y;
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
  __device__ __forceinline__ void add_values(unsigned own, const CodedOperands<S>& operands, const Weights& weights,
                                             WarpState<S>& state) const {
#pragma unroll
    for (int o = 0; o < S::kOperands; o += 2) {
      if (o / 2 >= value_pairs_) break;
      const CodedValuePair& pair = operands.value[o / 2];
      unsigned x[Copies::kPlaneFactor][4];
#pragma unroll
      for (int group = 0; group < Copies::kPlaneFactor; ++group) {
        load_matrices<true>(own + Copies::kPlaneFactor * pair.plane + 512 * group, x[group]);
      }
#pragma unroll
      for (int half = 0; half < S::kHalves; ++half) {
        const unsigned first = x[half / 2][half % 2 * 2], second = x[half / 2][half % 2 * 2 + 1];
        const unsigned first_high = first >> 8, second_high = second >> 8;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const bool narrow = !kClassColumns && pair.narrow[i] != 0;
#pragma unroll
          for (int n = 0; n < S::kValueTiles; ++n) {
            const unsigned(&wide)[2] = weights.by[half][0][n], (&other)[2] = weights.by[half][kWeightSets - 1][n];
            mma<Half::kFloat16>(state.out[n][o + i], first & pair.mask[i].low, first_high & pair.mask[i].high,
                                second & pair.mask[i].low, second_high & pair.mask[i].high, narrow ? other[0] : wide[0],
                                narrow ? other[1] : wide[1]);
          }
        }
      }
    }
  }

  const CodedParams& p_;
  Copies& copies_;
  unsigned target_;  // `shared` as an address in shared memory
  unsigned char* shared_;
  int lane_, key_pairs_, wide_key_pairs_, value_pairs_;
};

}  // namespace oscar::cuda
