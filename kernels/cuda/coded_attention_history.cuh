// SPDX-License-Identifier: MIT
// One warp's way through packed rows of the coded cache: 32 tokens at a time, with copies of its own in flight. What it
// computes is laid out as int2_decode_warp.cuh says.
#pragma once

#include "kernels/cuda/coded_attention_params.cuh"
#include "kernels/cuda/coded_attention_queries.cuh"
#include "kernels/cuda/int2_decode_warp.cuh"

namespace oscar::cuda {

/// head_dim, operands of the values at most, key tiles.
template <int kHeadDim, int kMostOperands, int kNumKeyTiles>
struct CodedShape {
  static constexpr int kDim = kHeadDim, kKeyTiles = kNumKeyTiles, kValueTiles = (kKeyTiles + 1) / 2;
  static constexpr int kGroups = 2;  // classes of scales
  static constexpr int kTiles = kDim / 16, kOperands = kMostOperands,
                       kOutTiles = kOperands > kTiles ? kOperands : kTiles;
  static constexpr int kHeads = 4 * kKeyTiles;
  static constexpr bool kClassColumns = kKeyTiles == 1;                      // see CodedHistoryWarp::Weights
  static constexpr int kBlocks = kOutTiles <= 12 && kKeyTiles <= 2 ? 2 : 1;  // at once, for the registers
};

template <class S>
class CodedHistoryWarp {
 public:
  /// shared: p.warp_bytes of this warp.
  __device__ CodedHistoryWarp(const CodedParams& p, const CodedHeadTable& table, int sequence, unsigned char* shared)
      : p_(p),
        target_(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
        shared_(shared),
        pages_(p.args.history.pages + static_cast<std::int64_t>(sequence) * p.args.history.pages_per_sequence),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        full_planes_(table.full_planes),
        half_planes_(table.half_planes),
        key_pairs_(table.key_pairs),
        wide_key_pairs_(table.wide_key_pairs),
        value_pairs_(table.value_pairs),
        data_(kept(static_cast<const unsigned char*>(p.args.pages) + (table.first_byte << p.history_shift))) {}

  /// Takes tokens [first, end), of which this warp has every rule.warps-th step from step `warp` on, and begins to
  /// load which pages hold the first of them.
  __device__ __forceinline__ void look_up(int first, int end, int warp) {
    first_ = first + warp * kStepTokens, end_ = end;
#pragma unroll
    for (int i = 0; i < kMostCodedStages; ++i) {
      const int begin = first_ + i * stride();
      pages_ahead_[i] = begin < end_ ? page_of(begin) : 0;
    }
  }
  /// True if it has these tokens.
  __device__ bool has(int first, int end, int warp) const {
    return first_ == first + warp * kStepTokens && end_ == end;
  }

  __device__ __forceinline__ void start() {
#pragma unroll
    for (int i = 0; i < kMostCodedStages - 1; ++i) {
      if (i >= p_.stages - 1) break;
      const int begin = first_ + i * stride();
      if (begin < end_) copy(i * p_.stage_bytes, pages_ahead_[i], begin);
      commit_copies();
    }
  }

  __device__ __forceinline__ void run(const CodedQueries<S>& queries, const CodedOperands& operands,
                                      WarpState<S>& state) {
    const Middles middles(*this, queries, operands);
    const bool three = p_.stages == 3;
    int stage = 0, free_stage = (p_.stages - 1) * p_.stage_bytes, page = three ? pages_ahead_[2] : pages_ahead_[1];
    int ahead = first_ + (p_.stages - 1) * stride();  // the first token of the step that is copied next
    for (int left = end_ - first_; left > 0; left -= stride()) {
      if (three) {
        wait_for_copies<1>();
      } else {
        wait_for_copies<0>();
      }
      __syncwarp();  // every lane's copies are there, and nobody reads the stage that the next copies go to
      if (ahead < end_) copy(free_stage, page, ahead);
      commit_copies();
      ahead += stride();
      if (ahead < end_) page = page_of(ahead);
      step(stage, left, queries, operands, middles, state);
      free_stage = stage;
      stage += p_.stage_bytes;
      if (stage == p_.stages * p_.stage_bytes) stage = 0;
    }
  }

 private:
  /// What a step subtracts from products: those of the middle of all codes, by class of channels.
  struct Middles {
    int product[2][S::kKeyTiles];
    float unit[S::kKeyTiles];

    __device__ __forceinline__ Middles(const CodedHistoryWarp& warp, const CodedQueries<S>& queries,
                                       const CodedOperands& operands) {
      const auto ones = [](unsigned, unsigned(&x)[4]) { x[0] = x[1] = x[2] = x[3] = 0xffffffffU; };
#pragma unroll
      for (const int c : {kWideClass, kNarrowClass}) {
        int sums[S::kKeyTiles][2][4] = {};
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
  __device__ __forceinline__ void multiply(int of_class, const CodedQueries<S>& queries, const CodedOperands& operands,
                                           const Load& load, int (&sums)[S::kKeyTiles][2][4]) const {
    const bool wide = of_class == kWideClass;
    multiply_keys<S>(queries, operands, wide ? 0 : wide_key_pairs_, wide ? wide_key_pairs_ : key_pairs_, lane_, load,
                     sums);
  }

  static constexpr int kScaleBytes = kWarp * 4;  // of a stage: they come first

  __device__ int stride() const { return p_.rule.warps * kStepTokens; }
  /// Token of this lane in the step from `begin` on; after the end, the last one again (its weight will be 0).
  __device__ int token_of(int begin) const { return min(begin + lane_, end_ - 1); }
  __device__ int page_of(int begin) const { return pages_[token_of(begin) >> p_.history_shift]; }

  /// Copies this lane's row of the step from token `begin` on to `stage`; `page`: of its token.
  __device__ __forceinline__ void copy(int stage, int page, int begin) const {
    const int slot = token_of(begin) & ((1 << p_.history_shift) - 1);
    const unsigned char* from = data_ + std::int64_t{p_.page_stride} * page + slot * 16;
    const unsigned scales = target_ + static_cast<unsigned>(stage + lane_ * 4), plane = 16U << p_.history_shift;
    unsigned to = target_ + static_cast<unsigned>(stage + kScaleBytes + lane_ * 16);
#pragma unroll 2
    for (int n = full_planes_; n > 0; --n) {
      copy_async<16>(to, from);
      from += plane, to += kPlaneBytes;
    }
    from -= slot * 8;
    if (half_planes_ > 0) {
      copy_async<8>(to, from);
      from += plane / 2, to += kPlaneBytes;
      if (half_planes_ > 1) {
        copy_async<8>(to, from);
        from += plane / 2;
      }
    }
    copy_async<4>(scales, from - slot * 4);
  }

  /// The scales of the tokens 16 * half + g + 8 * row: keys wide, keys narrow, values wide, values narrow.
  __device__ __forceinline__ void share_scales(const unsigned char* bytes, float4 (&scales)[2][2]) const {
    auto* const shared = reinterpret_cast<float4*>(shared_ + p_.stages * p_.stage_bytes);
    const unsigned own = reinterpret_cast<const unsigned*>(bytes)[lane_];
    const auto scale = [&](int byte) {
      return fast_exp2(static_cast<float>(own >> 8 * byte & 0xffU) * 0.0625F - 8.0F);
    };
    shared[lane_] = {scale(0), scale(1), scale(2), scale(3)};
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) scales[i / 2][i % 2] = shared[8 * i + lane_ / 4];
    __syncwarp();  // before the next step writes
  }

  /// `own`: the lane's row in plane 0 of the step.
  /// products[class][tile][half][row] = the sum of q / unit * (code - middle) over the class's channels, for the tokens
  /// 16 * half + g + 8 * row and the lane's head of key tile `tile`.
  __device__ __forceinline__ void find_products(unsigned own, const CodedQueries<S>& queries,
                                                const CodedOperands& operands, const Middles& middles,
                                                float (&products)[2][S::kKeyTiles][2][2]) const {
    const auto load = [&](unsigned offset, unsigned(&x)[4]) { load_matrices<false>(own + offset, x); };
#pragma unroll
    for (const int c : {kWideClass, kNarrowClass}) {
      int sums[S::kKeyTiles][2][4] = {};
      multiply(c, queries, operands, load, sums);
#pragma unroll
      for (int i = 0; i < 4 * S::kKeyTiles; ++i) {
        const int(&sum)[4] = sums[i / 4][i / 2 % 2];
        // What wraps around on the way comes back: the result is less than 2^31.
        const unsigned product = 256U * static_cast<unsigned>(sum[2 * (i % 2)]) +
                                 static_cast<unsigned>(sum[2 * (i % 2) + 1]) -
                                 static_cast<unsigned>(middles.product[c][i / 4]);
        products[c][i / 4][i / 2 % 2][i % 2] = static_cast<float>(static_cast<int>(product));
      }
    }
  }

  /// 32 tokens, of which the first `valid` count.
  __device__ __forceinline__ void step(int stage, int valid, const CodedQueries<S>& queries,
                                       const CodedOperands& operands, const Middles& middles,
                                       WarpState<S>& state) const {
    const unsigned own = target_ + static_cast<unsigned>(stage + kScaleBytes + lane_ * 16);
    float4 scales[2][2];
    share_scales(shared_ + stage, scales);
    float scores[2][S::kKeyTiles][2], tops[S::kKeyTiles];
    {
      float products[2][S::kKeyTiles][2][2];
      find_products(own, queries, operands, middles, products);
#pragma unroll
      for (int n = 0; n < 4 * S::kKeyTiles; ++n) {
        const int i = n / 4, half = n / 2 % 2, row = n % 2;
        const float4& s = scales[half][row];
        scores[half][i][row] = middles.unit[i] * (s.x * products[0][i][half][row] + s.y * products[1][i][half][row]);
      }
    }
    if (valid < kStepTokens) {
#pragma unroll
      for (int n = 0; n < 4 * S::kKeyTiles; ++n) {
        if (16 * (n / 2 % 2) + lane_ / 4 + 8 * (n % 2) >= valid) scores[n / 2 % 2][n / 4][n % 2] = -INFINITY;
      }
    }
#pragma unroll
    for (int n = 0; n < 4 * S::kKeyTiles; ++n) {
      const float score = scores[n / 2 % 2][n / 4][n % 2];
      tops[n / 4] = n % 4 == 0 ? score : fmaxf(tops[n / 4], score);
    }
    state.raise(tops);
    Weights weights;
#pragma unroll
    for (int n = 0; n < 4; ++n) weigh(scores[n / 2], n % 2, scales[n / 2][n % 2], state, weights.by[n / 2]);
    add_values(own, operands, weights, state);
  }

  /// Weights times the values' scales as the right operand of the products with values. If there are columns enough,
  /// the classes are neighbouring columns: 2t is head t with the wide scale, 2t + 1 with the narrow one. Else they are
  /// operands of their own.
  static constexpr bool kClassColumns = S::kClassColumns;
  static constexpr int kWeightSets = kClassColumns ? 1 : 2;
  struct Weights {
    unsigned by[2][kWeightSets][S::kValueTiles][2];  // of 16 tokens each
  };

  /// Scores of row `row` of 16 tokens to weights times the values' scales. A weight is 2^8 at most, a scale less than
  /// 2^8: float16 holds the product.
  __device__ __forceinline__ void weigh(const float (&scores)[S::kKeyTiles][2], int row, const float4& scales,
                                        WarpState<S>& state, unsigned (&by)[kWeightSets][S::kValueTiles][2]) const {
    float scaled[2][2 * S::kValueTiles] = {};  // of an odd tile: 0
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
      const float weight = fast_exp2(scores[i][row] - state.highest[i]);
      state.sum[i] += weight;
      state.zero[i][kWideClass] += scaled[kWideClass][i] = weight * scales.z;
      state.zero[i][kNarrowClass] += scaled[kNarrowClass][i] = weight * scales.w;
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

  /// out += V^T P^T for 32 packed rows.
  __device__ __forceinline__ void add_values(unsigned own, const CodedOperands& operands, const Weights& weights,
                                             WarpState<S>& state) const {
#pragma unroll
    for (int o = 0; o < S::kOperands; o += 2) {
      if (o / 2 >= value_pairs_) break;
      const CodedValuePair& pair = operands.value[o / 2];
      unsigned x[4], high[4];
      load_matrices<true>(own + pair.plane, x);
#pragma unroll
      for (int r = 0; r < 4; ++r) high[r] = x[r] >> 8;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const unsigned low_mask = pair.mask[i].low, high_mask = pair.mask[i].high;
        const bool narrow = !kClassColumns && pair.narrow[i] != 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int n = 0; n < S::kValueTiles; ++n) {
            const unsigned(&wide)[2] = weights.by[half][0][n], (&other)[2] = weights.by[half][kWeightSets - 1][n];
            mma<Half::kFloat16>(state.out[n][o + i], x[2 * half] & low_mask, high[2 * half] & high_mask,
                                x[2 * half + 1] & low_mask, high[2 * half + 1] & high_mask, narrow ? other[0] : wide[0],
                                narrow ? other[1] : wide[1]);
          }
        }
      }
    }
  }

  const CodedParams& p_;
  unsigned target_;  // `shared` as an address in shared memory
  unsigned char* shared_;
  const std::int32_t* pages_;
  int lane_, full_planes_, half_planes_, key_pairs_, wide_key_pairs_, value_pairs_;
  const unsigned char* data_;          // of this KV head in page 0
  int first_ = 0, end_ = 0;            // the first token of the first step, the end of the split
  int pages_ahead_[kMostCodedStages];  // of the first steps
};

}  // namespace oscar::cuda
