// SPDX-License-Identifier: MIT
// One warp's way through packed rows of the coded cache: 32 or 64 tokens at a time, with copies of its own in flight.
// What it computes is laid out as int2_decode_warp.cuh says.
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
  static constexpr int kHalves = kKeyTiles <= 2 ? 4 : 2;                     // of a step: 16 tokens each
  static constexpr int kBlocks = kOutTiles <= 12 && kKeyTiles <= 2 ? 2 : 1;  // at once, for the registers
};

template <class S>
class CodedHistoryWarp {
 public:
  static constexpr int kStep = 16 * S::kHalves;  // tokens

  /// shared: p.warp_bytes of this warp.
  __device__ CodedHistoryWarp(const CodedParams& p, const CodedHeadTable& table, int sequence, unsigned char* shared)
      : p_(p),
        target_(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
        shared_(shared),
        table_(p.args.history.pages + static_cast<std::int64_t>(sequence) * p.args.history.pages_per_sequence),
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
    first_ = first + warp * kStep, end_ = end;
    find_pages(first_, pages_[0]);
    find_pages(first_ + stride(), pages_[1]);
  }
  /// True if it has these tokens.
  __device__ bool has(int first, int end, int warp) const { return first_ == first + warp * kStep && end_ == end; }

  __device__ __forceinline__ void start() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      copy(i * p_.stage_bytes, pages_[i], first_ + i * stride());
      commit_copies();
    }
  }

  __device__ __forceinline__ void run(const CodedQueries<S>& queries, const CodedOperands<S>& operands,
                                      WarpState<S>& state) {
    const Middles middles(*this, queries, operands);
    int stage = 0, ahead = first_ + 2 * stride();  // the first token of the step that is copied next
    for (int left = end_ - first_; left > 0; left -= stride()) {
      find_pages(ahead, pages_[0]);
      wait_for_copies<1>();
      __syncwarp();  // every lane's copies are there
      step(stage, left, queries, operands, middles, state);
      copy(stage, pages_[0], ahead);
      commit_copies();
      ahead += stride();
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

  static constexpr int kScaleBytes = kStep * 4, kPlaneBytes = kStep * 16;  // of a stage: scales come first
  static constexpr int kPlaneFactor = kStep / 32;  // on offsets of planes in tables, which are those of 32 rows

  __device__ int stride() const { return p_.rule.warps * kStep; }
  /// The pages of the lane's tokens in the step from `begin` on, begin + lane and begin + 32 + lane.
  __device__ __forceinline__ void find_pages(int begin, int (&pages)[kPlaneFactor]) const {
    if (begin >= end_) return;
#pragma unroll
    for (int i = 0; i < kPlaneFactor; ++i) pages[i] = table_[token_of(begin, i) >> p_.history_shift];
  }
  /// After the end, the last token again: its weight will be 0.
  __device__ int token_of(int begin, int group) const { return min(begin + 32 * group + lane_, end_ - 1); }

  /// Copies the lane's rows of the step from token `begin` on to `stage`.
  __device__ __forceinline__ void copy(int stage, const int (&pages)[kPlaneFactor], int begin) const {
    if (begin >= end_) return;
#pragma unroll
    for (int i = 0; i < kPlaneFactor; ++i) copy_row(target_ + stage, 32 * i + lane_, pages[i], token_of(begin, i));
  }
  __device__ __forceinline__ void copy_row(unsigned stage, int row, int page, int token) const {
    const int slot = token & ((1 << p_.history_shift) - 1);
    const unsigned char* from = data_ + std::int64_t{p_.page_stride} * page + slot * 16;
    const unsigned plane = 16U << p_.history_shift;
    unsigned to = stage + static_cast<unsigned>(kScaleBytes + row * 16);
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
    copy_async<4>(stage + static_cast<unsigned>(row * 4), from - slot * 4);
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
    for (int i = 0; i < kPlaneFactor; ++i) {
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
    const unsigned own = target_ + static_cast<unsigned>(stage + kScaleBytes + lane_ * 16);
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
      unsigned x[kPlaneFactor][4];
#pragma unroll
      for (int group = 0; group < kPlaneFactor; ++group) {
        load_matrices<true>(own + kPlaneFactor * pair.plane + 512 * group, x[group]);
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
  unsigned target_;  // `shared` as an address in shared memory
  unsigned char* shared_;
  const std::int32_t* table_;  // of pages, of the sequence
  int lane_, full_planes_, half_planes_, key_pairs_, wide_key_pairs_, value_pairs_;
  const unsigned char* data_;        // of this KV head in page 0
  int first_ = 0, end_ = 0;          // the first token of the first step, the end of the split
  int pages_[2][kPlaneFactor] = {};  // of the first two steps, then [0] of the step that is copied next
};

}  // namespace oscar::cuda
