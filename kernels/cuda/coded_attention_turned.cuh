// SPDX-License-Identifier: MIT
// Keys before RoPE in the coded decode kernel: the scores of a warp, of what TurnedQueries prepared for its block.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/coded_attention_scores.cuh"
#include "kernels/cuda/coded_attention_turned_queries.cuh"

namespace oscar::cuda {

/// As CodedScores, of keys that turn.
template <class S>
class TurnedScores : public StepScales<S> {
 public:
  using Copies = CodedCopies<S>;
  using StepScales<S>::StepScales, StepScales<S>::scales, StepScales<S>::is_mirrored;

  /// warp: of the block.
  __device__ __forceinline__ void take(const CodedOperands<S>&, const TurnedQueries<S>& queries, int warp) {
    const TurnedPlaces& places = queries.places();
    const unsigned from = queries.address();
    slots_ = places.slots, from_ = from;
#pragma unroll
    for (const int c : {kWideClass, kNarrowClass}) end_[c] = uniform(queries.end(c));
    phases_ = from + places.phases + places.phase_bytes * static_cast<unsigned>(warp);
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
      unit_[i] = queries.unit(4 * i + lane_ % 4);
    }
  }
  __device__ __forceinline__ float unit(int i) const { return unit_[i]; }

  /// position: of the step's first token.
  __device__ __forceinline__ void find(unsigned stage, unsigned scale_bytes, int valid, int position,
                                       float (&scores)[S::kKeyTiles][S::kHalves][2]) {
    this->share_scales(stage + scale_bytes, valid);
    turn_to(2U * static_cast<unsigned>(position) + Copies::kStep - 1);
    // The lane's rows in plane 0: of 64 tokens the first 32 in their order and the others backwards.
    unsigned rows[Copies::kPlaneFactor] = {stage + 16 * (S::kHalves > 2 || lane_ < 16 ? lane_ : 47 - lane_)};
    if (S::kHalves > 2) rows[Copies::kPlaneFactor - 1] = stage + 16 * (31 - lane_);
    find_means(scores);
    add_class(kNarrowClass, end_[kWideClass], end_[kNarrowClass], rows, scores);
    if (end_[kWideClass] > 0) add_class(kWideClass, 0, end_[kWideClass], rows, scores);
  }

 private:
  using StepScales<S>::lane_;
  static constexpr int kGroups = S::kDim / 16, kTiles = S::kKeyTiles, kKept = S::kHalves / 2;
  static constexpr unsigned kTable = 512 * kKept, kSigns = 0x80008000;

  [[nodiscard]] __device__ __forceinline__ TurnedPlaces places() const {
    return {S::kDim, Copies::kStep, S::kKeyTiles, slots_, 0};
  }

  /// exp(i m f) of this warp's step, whose middle is at twice_middle / 2: of each two pairs cos, sin, cos, -sin, of
  /// which means take the first or the last two, and behind them 1 and 0, the phase of what stays; then of the
  /// operands' words.
  __device__ __forceinline__ void turn_to(unsigned twice_middle) const {
    const unsigned of_pairs = phases_ + 64 * slots_, turned_by = from_ + places().turns + 8 * lane_;
#pragma unroll
    for (int i = 0; i < S::kDim / 2; i += 2 * kWarp) {
      if (S::kDim / 2 < 2 * kWarp && 2 * lane_ >= S::kDim / 2) break;
      const uint2 turns = load_shared_pair(turned_by + 4 * i);
      const float2 a = cos_sin(twice_middle * turns.x), b = cos_sin(twice_middle * turns.y);
      const unsigned cos = pack_f16(a.x, b.x), sin = pack_f16(a.y, b.y);
      store_shared(of_pairs + 8 * i + 16 * lane_, make_uint4(cos, sin, cos, sin ^ kSigns));
    }
    if (lane_ == 0) store_shared(of_pairs + 4 * S::kDim, make_uint4(pack_f16(1.0F, 1.0F), 0, 0, 0));
    __syncwarp();
#pragma unroll 1
    for (int i = lane_; i < 4 * end_[kNarrowClass]; i += kWarp) {
      const uint2 from = load_shared_pair(from_ + places().gather + 8 * i);
      const auto both = [&](unsigned at, unsigned behind) {  // of two coordinates
        const unsigned first = load_shared_half(of_pairs + (at & 0xffff) + behind);
        return __byte_perm(first, load_shared_half(of_pairs + (at >> 16) + behind), 0x5410);
      };
      store_shared(phases_ + 16 * i, make_uint4(both(from.x, 0), both(from.x, 4), both(from.y, 0), both(from.y, 4)));
    }
    __syncwarp();
  }

  /// A of two coordinates, by the phase (cos, sin) of the step's middle and by z; B.
  __device__ __forceinline__ static unsigned turned(unsigned cos, unsigned sin, unsigned real, unsigned imaginary) {
    return word_of(__hfma2(halves(cos), halves(real), __hmul2(halves(sin), halves(imaginary))));
  }
  __device__ __forceinline__ static unsigned turned_across(unsigned cos, unsigned sin, unsigned real,
                                                           unsigned imaginary) {
    return word_of(__hfma2(halves(cos), halves(imaginary), __hneg2(__hmul2(halves(sin), halves(real)))));
  }
  /// Row g + 8 * row of 16 tokens in the words that were loaded of an operand's plane.
  __device__ __forceinline__ static unsigned word_at(const unsigned (&words)[Copies::kPlaneFactor][4], int half,
                                                     int row) {
    if (S::kHalves == 2) return words[0][2 * half + row];
    return words[is_mirrored(half) ? 1 : 0][2 * (is_mirrored(half) ? S::kHalves - 1 - half : half) + row];
  }

  /// What means add to the scores.
  __device__ __forceinline__ void find_means(float (&scores)[S::kKeyTiles][S::kHalves][2]) const {
    float sums[kTiles][kKept][4] = {};  // row g behind the middle and before it, then row g + 8
    const unsigned of_z = from_ + places().mean_z + 8 * lane_, table = from_ + places().mean_table + 16 * lane_;
    // Columns of tokens behind the middle have conjugates, since the table has those before it.
    const unsigned phases = phases_ + 64 * slots_ + 16 * (lane_ % 4) + (lane_ / 4 % 2 == 0 ? 8 : 0);
#pragma unroll 2
    for (int group = 0; group < kGroups; group += 2) {
      unsigned a[kTiles][2], b[kTiles][2];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const uint2 phase = load_shared_pair(phases + 64 * (group + n));
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint2 z = load_shared_pair(of_z + 256 * (kTiles * (group + n) + tile));
          a[tile][n] = turned(phase.x, phase.y, z.x, z.y), b[tile][n] = turned_across(phase.x, phase.y, z.x, z.y);
        }
      }
#pragma unroll
      for (int half = 0; half < kKept; ++half) {
        const uint4 cos = load_shared(table + kTable * group + 512 * half);
        const uint4 sin = load_shared(table + kTable * (group + 1) + 512 * half);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          mma<Half::kFloat16>(sums[tile][half], cos.x, cos.y, cos.z, cos.w, a[tile][0], a[tile][1]);
          mma<Half::kFloat16>(sums[tile][half], sin.x, sin.y, sin.z, sin.w, b[tile][0], b[tile][1]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const float unit = __uint_as_float(load_shared_word(from_ + places().mean_units + 4 * (4 * i + lane_ % 4)));
#pragma unroll
      for (int n = 0; n < 2 * S::kHalves; ++n) {
        const int half = n / 2, row = n % 2, kept = is_mirrored(half) ? S::kHalves - 1 - half : half;
        scores[i][half][row] = unit * sums[i][kept][2 * row + (is_mirrored(half) ? 0 : 1)];
      }
    }
  }

  /// Adds the products of the operands [from, to), which are of one class, to the scores.
  __device__ __forceinline__ void add_class(int of_class, int from, int to,
                                            const unsigned (&rows)[Copies::kPlaneFactor],
                                            float (&scores)[S::kKeyTiles][S::kHalves][2]) const {
    float sums[kTiles][S::kHalves][4] = {}, middles[kTiles][4] = {};  // of codes; of the largest codes
#pragma unroll(kTiles == 1 ? 2 : 1)
    for (int i = from; i < to; ++i) add_operand(i, rows, sums, middles);
#pragma unroll
    for (int n = 0; n < 2 * S::kHalves; ++n) {
      const int half = n / 2, row = n % 2;
      const float2 both = scales(half, row, 0);
      const float s = of_class == kWideClass ? both.x : both.y;
      const int kept = is_mirrored(half) ? S::kHalves - 1 - half : half;
      const float before = static_cast<float>(lane_ / 4) * (2.0F / Copies::kStep) +
                           (2 * (16 * kept + 8 * row) - (Copies::kStep - 1)) * (1.0F / Copies::kStep);
      const float at = is_mirrored(half) ? -before : before;  // from -1, the first token, to 1
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) {
        const float* const sum = sums[i][half] + 2 * row;
        const float level = __fmaf_rn(-0.5F, middles[i][0], sum[0]), slope = __fmaf_rn(-0.5F, middles[i][1], sum[1]);
        scores[i][half][row] += s * __fmaf_rn(at, slope, level);
      }
    }
  }

  /// Adds the products of an operand's codes, subnormals of float16. Its packed rows lie in `rows` and behind.
  __device__ __forceinline__ void add_operand(int i, const unsigned (&rows)[Copies::kPlaneFactor],
                                              float (&sums)[kTiles][S::kHalves][4], float (&middles)[kTiles][4]) const {
    const unsigned operand = from_ + places().operands + sizeof(CodedTurnedOperand) * i;
    const uint4 bits = load_shared(operand), phase = load_shared(phases_ + 64 * i + 16 * (lane_ % 4));
    const unsigned plane = load_shared_word(operand + 16);
    unsigned a[kTiles][2], words[Copies::kPlaneFactor][4];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint4 z = load_shared(from_ + places().z + 16 * lane_ + 512 * (kTiles * i + tile));
      a[tile][0] = turned(phase.x, phase.y, z.x, z.y), a[tile][1] = turned(phase.z, phase.w, z.z, z.w);
    }
#pragma unroll
    for (int group = 0; group < Copies::kPlaneFactor; ++group) {
      load_matrices<false>(rows[group] + Copies::kPlaneFactor * plane + 512 * group, words[group]);
    }
#pragma unroll
    for (int half = 0; half < S::kHalves; ++half) {
      const unsigned x = word_at(words, half, 0), y = word_at(words, half, 1);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        mma<Half::kFloat16>(sums[tile][half], x & bits.x, y & bits.x, x >> 8 & bits.z, y >> 8 & bits.z, a[tile][0],
                            a[tile][1]);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      mma<Half::kFloat16>(middles[tile], bits.x, bits.y, bits.z, bits.w, a[tile][0], a[tile][1]);
    }
  }

  int slots_, end_[2];      // operands of the table; where each class of those that are read ends
  unsigned from_, phases_;  // where shared memory has what the block prepared, and this warp's phases
  float unit_[S::kKeyTiles];
};

}  // namespace oscar::cuda
