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
        value_operands_(table.value_operands),
        data_(kept(static_cast<const unsigned char*>(p.args.pages) + (table.first_byte << p.history_shift))) {}

  /// Takes tokens [first, end), of which this warp has every rule.warps-th step from step `warp` on, and begins to
  /// load which pages hold the first of them.
  __device__ __forceinline__ void look_up(int first, int end, int warp) {
    first_ = first + warp * kStepTokens, end_ = end;
    const int steps = (end - first + kStepTokens - 1) / kStepTokens;
    count_ = steps > warp ? (steps - warp + p_.rule.warps - 1) / p_.rule.warps : 0;
#pragma unroll
    for (int i = 0; i < kMostCodedStages; ++i) pages_ahead_[i] = i < count_ ? page_of(i) : 0;
  }
  /// True if it has these tokens.
  __device__ bool has(int first, int end, int warp) const {
    return first_ == first + warp * kStepTokens && end_ == end;
  }

  __device__ __forceinline__ void start() {
#pragma unroll
    for (int i = 0; i < kMostCodedStages - 1; ++i) {
      if (i >= p_.stages - 1) break;
      if (i < count_) copy(i, pages_ahead_[i], i);
      commit_copies();
    }
  }

  __device__ __forceinline__ void run(const CodedQueries<S>& queries, const CodedOperands& operands,
                                      WarpState<S>& state) {
    float middle[2][S::kKeyTiles], unit[S::kKeyTiles];  // products of the middle of all codes
    find_middles(queries, operands, middle, unit);
    int stage = 0, free_stage = p_.stages - 1;
    int next_page = p_.stages == 4 ? pages_ahead_[3] : p_.stages == 3 ? pages_ahead_[2] : pages_ahead_[1];
    for (int i = 0; i < count_; ++i) {
      if (p_.stages == 4) {
        wait_for_copies<2>();
      } else if (p_.stages == 3) {
        wait_for_copies<1>();
      } else {
        wait_for_copies<0>();
      }
      __syncwarp();  // every lane's copies are there, and nobody reads the stage that the next copies go to
      const int ahead = i + p_.stages - 1;
      if (ahead < count_) copy(free_stage, next_page, ahead);
      commit_copies();
      if (ahead + 1 < count_) next_page = page_of(ahead + 1);
      step(stage * p_.stage_bytes, end_ - begin_of(i), queries, operands, middle, unit, state);
      free_stage = stage;
      stage = stage + 1 == p_.stages ? 0 : stage + 1;
    }
  }

 private:
  __device__ int begin_of(int i) const { return first_ + i * p_.rule.warps * kStepTokens; }
  /// Token of this lane in the warp's i-th step; after the end, the last one again (its weight will be 0).
  __device__ int token_of(int i) const { return min(begin_of(i) + lane_, end_ - 1); }
  __device__ int page_of(int i) const { return pages_[token_of(i) >> p_.history_shift]; }

  /// Copies this lane's row of the i-th step; `page`: of its token.
  __device__ __forceinline__ void copy(int stage, int page, int i) const {
    const int slot = token_of(i) & ((1 << p_.history_shift) - 1);
    const unsigned char* from = data_ + p_.args.page_stride * page;
    unsigned to = target_ + static_cast<unsigned>(stage * p_.stage_bytes + lane_ * 16);
    const std::int64_t plane = std::int64_t{16} << p_.history_shift;
    from += slot * 16;
#pragma unroll 4
    for (int n = 0; n < full_planes_; ++n, from += plane, to += kPlaneBytes) copy_async<16>(to, from);
    from -= slot * 8;
    for (int n = 0; n < half_planes_; ++n, from += plane / 2, to += kPlaneBytes) copy_async<8>(to, from);
    copy_async<4>(to - static_cast<unsigned>(lane_) * 12, from - slot * 4);
  }

  __device__ __forceinline__ void find_middles(const CodedQueries<S>& queries, const CodedOperands& operands,
                                               float (&middle)[2][S::kKeyTiles], float (&unit)[S::kKeyTiles]) const {
    float products[2][S::kKeyTiles][2][2];
    const auto ones = [](CodedSource, unsigned(&x)[4]) { x[0] = x[1] = x[2] = x[3] = 0xffffffffU; };
    multiply_keys<S>(queries, operands, key_pairs_, wide_key_pairs_, lane_, ones, products);
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
      unit[i] = queries.unit(4 * i + lane_ % 4);
      middle[0][i] = 0.5F * products[0][i][0][0];
      middle[1][i] = 0.5F * products[1][i][0][0];
    }
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

  /// 32 tokens, of which the first `valid` count.
  __device__ __forceinline__ void step(int offset, int valid, const CodedQueries<S>& queries,
                                       const CodedOperands& operands, const float (&middle)[2][S::kKeyTiles],
                                       const float (&unit)[S::kKeyTiles], WarpState<S>& state) const {
    const unsigned planes = target_ + static_cast<unsigned>(offset);
    float4 scales[2][2];
    share_scales(shared_ + offset + (full_planes_ + half_planes_) * kPlaneBytes, scales);
    float scores[2][S::kKeyTiles][2], tops[S::kKeyTiles];
    {
      float products[2][S::kKeyTiles][2][2];
      multiply_keys<S>(
          queries, operands, key_pairs_, wide_key_pairs_, lane_,
          [&](CodedSource source, unsigned(&x)[4]) { load_source<false>(planes, source, lane_, x); }, products);
#pragma unroll
      for (int n = 0; n < 4 * S::kKeyTiles; ++n) {
        const int i = n / 4, half = n / 2 % 2, row = n % 2;
        const float4& s = scales[half][row];
        const float score = unit[i] * (s.x * (products[0][i][half][row] - middle[0][i]) +
                                       s.y * (products[1][i][half][row] - middle[1][i]));
        scores[half][i][row] = 16 * half + lane_ / 4 + 8 * row < valid ? score : -INFINITY;
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      // weight * scale must not exceed what float16 holds
      const float log_scale = fast_log2(fmaxf(scales[n / 2][n % 2].z, scales[n / 2][n % 2].w));
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) {
        const float top = scores[n / 2][i][n % 2] + log_scale;
        tops[i] = n == 0 ? top : fmaxf(tops[i], top);
      }
    }
    state.raise(tops);
    unsigned weights[2][2][S::kValueTiles][2];  // of classes, halves
#pragma unroll
    for (int n = 0; n < 4; ++n)
      weigh(scores[n / 2], n % 2, scales[n / 2][n % 2], state, weights[0][n / 2], weights[1][n / 2]);
    add_values(planes, operands, weights, state);
  }

  /// Scores of row `row` of 16 tokens to weights times the values' scales, ready to be multiplied.
  __device__ __forceinline__ void weigh(const float (&scores)[S::kKeyTiles][2], int row, const float4& scales,
                                        WarpState<S>& state, unsigned (&wide)[S::kValueTiles][2],
                                        unsigned (&narrow)[S::kValueTiles][2]) const {
    float scaled[2][2 * S::kValueTiles] = {};  // of an odd tile: 0
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
      const float weight = fast_exp2(scores[i][row] - state.highest[i]);
      state.sum[i] += weight;
      state.zero[i][kWideClass] += scaled[0][i] = weight * scales.z;
      state.zero[i][kNarrowClass] += scaled[1][i] = weight * scales.w;
    }
#pragma unroll
    for (int n = 0; n < S::kValueTiles; ++n) {
      wide[n][row] = transpose8(pack_f16(scaled[0][2 * n], scaled[0][2 * n + 1]));
      narrow[n][row] = transpose8(pack_f16(scaled[1][2 * n], scaled[1][2 * n + 1]));
    }
  }

  /// out += V^T P^T for 32 packed rows.
  __device__ __forceinline__ void add_values(unsigned planes, const CodedOperands& operands,
                                             const unsigned (&weights)[2][2][S::kValueTiles][2],
                                             WarpState<S>& state) const {
    unsigned low[4] = {}, high[4] = {}, by[2][S::kValueTiles][2] = {};
    CodedValueOperand next = operands.value[0];
#pragma unroll
    for (int o = 0; o < S::kOperands; ++o) {
      if (o >= value_operands_) break;
      const CodedValueOperand operand = next;
      next = operands.value[o + 1];
      if (operand.source != 0) {
        load_source<true>(planes, operand.source, lane_, low);
        const bool narrow = (operand.source & kNarrowSource) != 0;
#pragma unroll
        for (int r = 0; r < 4; ++r) high[r] = low[r] >> 8;
#pragma unroll
        for (int i = 0; i < 4 * S::kValueTiles; ++i) {
          const int half = i / 2 % 2, n = i / 4, row = i % 2;
          by[half][n][row] = narrow ? weights[1][half][n][row] : weights[0][half][n][row];
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int n = 0; n < S::kValueTiles; ++n) {
          mma<Half::kFloat16>(state.out[n][o], low[2 * half] & operand.low_mask, high[2 * half] & operand.high_mask,
                              low[2 * half + 1] & operand.low_mask, high[2 * half + 1] & operand.high_mask,
                              by[half][n][0], by[half][n][1]);
        }
      }
    }
  }

  const CodedParams& p_;
  unsigned target_;  // `shared` as an address in shared memory
  unsigned char* shared_;
  const std::int32_t* pages_;
  int lane_, full_planes_, half_planes_, key_pairs_, wide_key_pairs_, value_operands_;
  const unsigned char* data_;            // of this KV head in page 0
  int first_ = 0, end_ = 0, count_ = 0;  // token of the first step, end of the split, steps
  int pages_ahead_[kMostCodedStages];    // of the first steps
};

}  // namespace oscar::cuda
