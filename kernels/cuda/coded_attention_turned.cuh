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
    for (int kind = 0; kind < kTurnedKinds; ++kind) end_[kind] = uniform(queries.end(kind));
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
#pragma unroll
    for (int n = 0; n < 2 * S::kHalves * S::kKeyTiles; ++n) {
      scores[n / (2 * S::kHalves)][n / 2 % S::kHalves][n % 2] = 0;
    }
    add_class(kNarrowClass, end_[kWideFast], end_[kNarrowSlow], end_[kNarrowFast], rows, scores);
    if (end_[kWideFast] > 0) add_class(kWideClass, 0, end_[kWideSlow], end_[kWideFast], rows, scores);
    add_means(scores);
  }

 private:
  using StepScales<S>::lane_;
  static constexpr int kGroups = S::kDim / 16, kTiles = S::kKeyTiles, kKept = S::kHalves / 2;
  static constexpr unsigned kTable = 512 * kKept, kSigns = 0x80008000;
  using Sums = float[kTiles][S::kHalves][4];

  [[nodiscard]] __device__ __forceinline__ TurnedPlaces places() const {
    return {S::kDim, Copies::kStep, S::kKeyTiles, slots_, 0};
  }

  /// exp(i m f) of this warp's step, whose middle is at twice_middle / 2: of the pairs, then of the operands' words.
  __device__ __forceinline__ void turn_to(unsigned twice_middle) const {
    const unsigned of_pairs = phases_ + 64 * slots_, turned_by = from_ + places().turns + 8 * lane_;
#pragma unroll
    for (int i = 0; i < S::kDim / 2; i += 2 * kWarp) {
      if (S::kDim / 2 < 2 * kWarp && 2 * lane_ >= S::kDim / 2) break;
      const uint2 turns = load_shared_pair(turned_by + 4 * i);
      const float2 a = cos_sin(twice_middle * turns.x), b = cos_sin(twice_middle * turns.y);
      store_words(of_pairs + 4 * i + 8 * lane_, pack_f16(a.x, a.y), pack_f16(b.x, b.y));
    }
    __syncwarp();
#pragma unroll 1
    for (int i = lane_; i < 4 * slots_; i += kWarp) {
      const uint2 from = load_shared_pair(from_ + places().gather + 8 * i);
      const unsigned a = load_shared_word(of_pairs + (from.x & 0xffff)),
                     b = load_shared_word(of_pairs + (from.x >> 16));
      const unsigned c = load_shared_word(of_pairs + (from.y & 0xffff)),
                     d = load_shared_word(of_pairs + (from.y >> 16));
      store_words(phases_ + 16 * i, __byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
      store_words(phases_ + 16 * i + 8, __byte_perm(c, d, 0x5410), __byte_perm(c, d, 0x7632));
    }
    __syncwarp();
  }
  __device__ __forceinline__ static void store_words(unsigned to, unsigned x, unsigned y) {
    asm volatile("st.shared.v2.u32 [%0], {%1,%2};\n" ::"r"(to), "r"(x), "r"(y) : "memory");
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

  /// Adds what means add, and takes off what the middles of narrow codes stand for.
  __device__ __forceinline__ void add_means(float (&scores)[S::kKeyTiles][S::kHalves][2]) const {
    float even[kTiles][kKept][4] = {}, odd[kTiles][kKept][4] = {};  // sums of cosines and of sines
    const unsigned of_z = from_ + places().mean_z + 8 * lane_, table = from_ + places().mean_table + 16 * lane_;
    const unsigned phases = phases_ + 64 * slots_ + 8 * (lane_ % 4);
#pragma unroll 2
    for (int group = 0; group < kGroups; group += 2) {
      unsigned a[kTiles][2], b[kTiles][2];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const uint2 both = load_shared_pair(phases + 32 * (group + n));
        const unsigned cos = __byte_perm(both.x, both.y, 0x5410), sin = __byte_perm(both.x, both.y, 0x7632);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint2 z = load_shared_pair(of_z + 256 * (kTiles * (group + n) + tile));
          a[tile][n] = turned(cos, sin, z.x, z.y), b[tile][n] = turned_across(cos, sin, z.x, z.y);
        }
      }
#pragma unroll
      for (int half = 0; half < kKept; ++half) {
        const uint4 cos = load_shared(table + kTable * group + 512 * half);
        const uint4 sin = load_shared(table + kTable * (group + 1) + 512 * half);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          mma<Half::kFloat16>(even[tile][half], cos.x, cos.y, cos.z, cos.w, a[tile][0], a[tile][1]);
          mma<Half::kFloat16>(odd[tile][half], sin.x, sin.y, sin.z, sin.w, b[tile][0], b[tile][1]);
        }
      }
    }
    uint2 units[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      units[i] = load_shared_pair(from_ + places().mean_units + 8 * (4 * i + lane_ % 4));
    }
#pragma unroll
    for (int n = 0; n < 2 * S::kHalves; ++n) {
      const int half = n / 2, row = n % 2, kept = is_mirrored(half) ? S::kHalves - 1 - half : half;
      const float s = scales(half, row, 0).y, sign = is_mirrored(half) ? -1.0F : 1.0F;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const float *const x = even[i][kept] + 2 * row, *const y = odd[i][kept] + 2 * row;
        scores[i][half][row] +=
            __uint_as_float(units[i].x) * (x[0] + sign * y[0]) + s * __uint_as_float(units[i].y) * (x[1] + sign * y[1]);
      }
    }
  }

  /// Adds the products of the operands [from, to), which are of one class, and of which those from `fast` on are not
  /// slow, to the scores.
  __device__ __forceinline__ void add_class(int of_class, int from, int fast, int to,
                                            const unsigned (&rows)[Copies::kPlaneFactor],
                                            float (&scores)[S::kKeyTiles][S::kHalves][2]) const {
    Sums sums = {};
    const unsigned operands = from_ + places().operands;
    uint4 next = load_shared(operands + 16 * from);
#pragma unroll 1
    for (int i = from; i < fast; ++i) {
      const uint4 operand = next;
      next = load_shared(operands + 16 * (i + 1));
      add_slow(of_class == kWideClass, operand, rows, sums);
    }
#pragma unroll 1
    for (int i = fast; i < to; ++i) {
      const uint4 operand = next;
      next = load_shared(operands + 16 * (i + 1));
      add_fast(of_class == kWideClass, operand, rows, sums);
    }
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
        scores[i][half][row] += s * __fmaf_rn(at, sum[1], sum[0]);
      }
    }
  }

  /// One part of an operand: codes of float16. Wide ones are less their middle, in units of 1/512; narrow ones are
  /// subnormals.
  struct Codes {
    unsigned mask, shift;
    bool wide;

    __device__ __forceinline__ unsigned of(unsigned word) const {
      const unsigned bits = word >> shift & mask;
      if (!wide) return bits;
      return word_of(
          __hfma2(halves(bits), __float2half2_rn(32768.0F), __hmul2(halves(mask), __float2half2_rn(-16384.0F))));
    }
  };

  /// What an operand's coordinates are multiplied with, before they are turned, by how much, and its packed rows.
  struct Loaded {
    uint4 phase, z[kTiles];
    unsigned words[Copies::kPlaneFactor][4];
  };
  __device__ __forceinline__ Loaded load(const uint4& operand, const unsigned (&rows)[Copies::kPlaneFactor]) const {
    Loaded x;
    x.phase = load_shared(phases_ + 64 * operand.w + 16 * (lane_ % 4));
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      x.z[tile] = load_shared(from_ + places().z + 16 * lane_ + 512 * (kTiles * operand.w + tile));
    }
#pragma unroll
    for (int group = 0; group < Copies::kPlaneFactor; ++group) {
      load_matrices<false>(rows[group] + operand.z + 512 * group, x.words[group]);
    }
    return x;
  }
  __device__ __forceinline__ void add_slow(bool wide, const uint4& operand,
                                           const unsigned (&rows)[Copies::kPlaneFactor], Sums& sums) const {
    const Loaded its = load(operand, rows);
    const Codes low{operand.x, 0, wide}, high{operand.y, 8, wide};
    unsigned a[kTiles][2];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      a[tile][0] = turned(its.phase.x, its.phase.y, its.z[tile].x, its.z[tile].y);
      a[tile][1] = turned(its.phase.z, its.phase.w, its.z[tile].z, its.z[tile].w);
    }
#pragma unroll
    for (int half = 0; half < S::kHalves; ++half) {
      const unsigned x = word_at(its.words, half, 0), y = word_at(its.words, half, 1);
      const unsigned codes[4] = {low.of(x), low.of(y), high.of(x), high.of(y)};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        mma<Half::kFloat16>(sums[tile][half], codes[0], codes[1], codes[2], codes[3], a[tile][0], a[tile][1]);
      }
    }
  }
  __device__ __forceinline__ void add_fast(bool wide, const uint4& operand,
                                           const unsigned (&rows)[Copies::kPlaneFactor], Sums& sums) const {
    const Loaded its = load(operand, rows);
    const unsigned table = from_ + places().table + 16 * lane_ + 2 * kTable * operand.w;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const Codes codes{part == 0 ? operand.x : operand.y, part == 0 ? 0U : 8U, wide};
      if (codes.mask == 0) continue;
      const unsigned cos = part == 0 ? its.phase.x : its.phase.z, sin = part == 0 ? its.phase.y : its.phase.w;
      unsigned a[kTiles], b[kTiles];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4& z = its.z[tile];
        const unsigned real = part == 0 ? z.x : z.z, imaginary = part == 0 ? z.y : z.w;
        a[tile] = turned(cos, sin, real, imaginary), b[tile] = turned_across(cos, sin, real, imaginary);
      }
#pragma unroll
      for (int kept = 0; kept < kKept; ++kept) {
        const uint4 by = load_shared(table + kTable * part + 512 * kept);
#pragma unroll
        for (const int half : {kept, S::kHalves - 1 - kept}) {
          const __half2 x = halves(codes.of(word_at(its.words, half, 0)));
          const __half2 y = halves(codes.of(word_at(its.words, half, 1)));
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            mma<Half::kFloat16>(sums[tile][half], word_of(__hmul2(x, halves(by.x))), word_of(__hmul2(y, halves(by.y))),
                                word_of(__hmul2(x, halves(by.z))), word_of(__hmul2(y, halves(by.w))), a[tile],
                                is_mirrored(half) ? b[tile] ^ kSigns : b[tile]);
          }
        }
      }
    }
  }

  int slots_, end_[kTurnedKinds];  // operands of the table; where each kind of those that are read ends
  unsigned from_, phases_;         // where shared memory has what the block prepared, and this warp's phases
  float unit_[S::kKeyTiles];
};

}  // namespace oscar::cuda
