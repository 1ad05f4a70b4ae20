// SPDX-License-Identifier: MIT
// Keys before RoPE in the coded decode kernel: what a block makes of its queries, and the scores of a warp.
//
// A step has 32 or 64 tokens at positions m + d, where m is the middle of the step. Of a key x at m + d, pair by pair
// x = y W^-1 + mean turned by (m + d) f, coordinate y_c adds to the score of a query (q_0, q_1)
//   y_c (A_c cos(d f) + B_c sin(d f)),   A_c + i B_c = exp(-i m f) z_c,   z_c = (W^-1_c0 - i W^-1_c1) (q_0 + i q_1),
// and the mean what a coordinate 1 would add whose row of W^-1 is the mean. cos(d f) and sin(d f) are the same in all
// steps: a block computes them once, and a warp multiplies codes by them. Once a step it turns the block's z by m f. So
// no row of a key is ever made. Where no pair of an operand turns far in a step, it adds y_c (A_c + d f B_c) instead.
// Products are of float16, with float32 sums.
#pragma once

#include <cuda_fp16.h>

#include "kernels/coded_turn.hpp"
#include "kernels/cuda/coded_attention_scores.cuh"

namespace oscar::cuda {

/// cos and sin of phase / 2^32 turns.
__device__ __forceinline__ float2 cos_sin(unsigned phase) {
  float2 out;
  __sincosf(static_cast<float>(static_cast<int>(phase)) * 0x1.921fb6p-30F, &out.y, &out.x);
  return out;
}
/// How far a pair turns in half a position, of which 2^32 are a turn.
__device__ __forceinline__ unsigned half_turn(float frequency) {
  return static_cast<unsigned>(__double2ll_rn(frequency * 341782637.7881849));  // 2^31 / (2 pi)
}
__device__ __forceinline__ __half2 halves(unsigned word) { return reinterpret_cast<const __half2&>(word); }
__device__ __forceinline__ unsigned word_of(__half2 pair) { return reinterpret_cast<const unsigned&>(pair); }

/// An operand of the keys: the bits of its low and its high part, each twice, and where its plane is.
struct alignas(16) TurnedOperand {
  unsigned low, high, plane;
  unsigned is_slow;  // whether it adds y_c (A_c + d f B_c)
};

/// What a block prepares before its warps read tokens: see TurnedPlaces.
template <class S>
class TurnedQueries {
 public:
  static constexpr int kStep = CodedCopies<S>::kStep, kGroups = S::kDim / 16, kTiles = S::kKeyTiles;
  static constexpr int kKept = S::kHalves / 2;

  /// shared: places().end bytes.
  __device__ TurnedQueries(unsigned char* shared, const CodedHeadTable& table, const oscar_coded_decode_args& args,
                           int kv_head, int warps)
      : places_(S::kDim, kStep, S::kKeyTiles, args.layout.key_operands, warps),
        shared_(shared),
        table_(table),
        pairs_(static_cast<const CodedTurnPair*>(args.turned.table) + kv_head * (S::kDim / 2)),
        is_far_(args.turned.is_far) {}

  [[nodiscard]] __device__ const TurnedPlaces& places() const { return places_; }
  [[nodiscard]] __device__ unsigned address() const { return static_cast<unsigned>(__cvta_generic_to_shared(shared_)); }
  /// What a unit of a head's scores is worth; not finite if one of its queries is not.
  [[nodiscard]] __device__ float unit(int head) const { return at<float>(places_.units)[head]; }
  /// In such units: what the means add to them (0), and what the middles of narrow codes take off (1).
  [[nodiscard]] __device__ float mean_unit(int head, int which) const {
    return at<float>(places_.mean_units)[2 * head + which];
  }

  /// Fills what does not depend on queries. By all threads, as store().
  __device__ void prepare() {
    auto* const of = at<std::uint16_t>(places_.pair_of);  // coordinates among the pairs: 2 * pair + 0 or 1
    auto* const turns = at<unsigned>(places_.turns);
    for (int i = thread(); i < S::kDim; i += threads()) {
      of[pairs_[i / 2].coordinate[i % 2]] = static_cast<std::uint16_t>(i);
      if (i % 2 == 0) turns[i / 2] = half_turn(pairs_[i / 2].frequency[is_far_ != 0 ? 1 : 0]);
    }
    __syncthreads();
    fill_operands();
    for (int i = thread(); i < 4 * places_.slots; i += threads()) {
      const auto place = [&](int byte) { return static_cast<unsigned>(4 * pair_of(word(i / 4, i), byte)); };
      at<uint2>(places_.gather)[i] = make_uint2(place(0) | place(2) << 16, place(1) | place(3) << 16);
    }
    for (int i = thread(); i < 2 * kKept * kWarp * places_.slots; i += threads()) {
      const int lane = i % kWarp, half = i / kWarp % kKept, part = i / (kWarp * kKept), slot = part / 2;
      const CodedKeyWord its = word(slot, lane);
      at<uint4>(places_.table)[i] = table_entry(turns[pair_of(its, part % 2)], turns[pair_of(its, part % 2 + 2)], half,
                                                lane, is_wide(slot) ? 1.0F : kSubnormal);
    }
    for (int i = thread(); i < kKept * kWarp * kGroups; i += threads()) {
      const int lane = i % kWarp, half = i / kWarp % kKept, pair = i / (kWarp * kKept) * 8 + 2 * (lane % 4);
      at<uint4>(places_.mean_table)[i] = table_entry(turns[pair], turns[pair + 1], half, lane, 1.0F);
    }
  }

  /// Makes z of all heads.
  __device__ void store(const CodedHeads& heads, float score_scale) {
    float *const units = at<float>(places_.units), *const mean_units = at<float>(places_.mean_units);
    for (int i = thread(); i < S::kHeads; i += threads()) units[i] = mean_units[2 * i] = mean_units[2 * i + 1] = 0;
    __syncthreads();
    for (int i = thread(); i < heads.count * S::kDim / 2; i += threads()) {
      const int head = i / (S::kDim / 2), pair = i % (S::kDim / 2);
      const float2 q = query(heads, head, pair);
      float top = 0;
      for (int c = 0; c < 2; ++c) {
        top = larger(top, table_.key_top[pairs_[pair].coordinate[c]] * size(product(pairs_[pair].inverse[c], q)));
      }
      raise(units[head], top);
      for (int which = 0; which < 2; ++which) raise(mean_units[2 * head + which], size(product(mean(pair, which), q)));
    }
    __syncthreads();
    for (int i = thread(); i < places_.slots * kTiles * kWarp; i += threads()) {
      const int lane = i % kWarp, slot = i / (kWarp * kTiles), head = head_of(i / kWarp % kTiles, lane);
      const bool is_slope = lane / 4 % 2 == 1, is_slow = at<TurnedOperand>(places_.operands)[slot].is_slow != 0;
      float per_unit = head < heads.count && units[head] != 0 ? 1 / units[head] : 0;
      if (is_shifted(slot / 2)) per_unit *= 0.0625F;  // here their bits stay where they are
      if (is_slow && !is_wide(slot)) per_unit *= kSubnormal;
      if (is_slope && !is_slow) per_unit = 0;
      const CodedKeyWord its = word(slot, lane);
      float2 z[4] = {};
      for (int byte = 0; byte < 4; ++byte) {
        if (its.channel[byte] < 0 || per_unit == 0) continue;
        const int of = at<std::uint16_t>(places_.pair_of)[its.channel[byte]], pair = of / 2;
        z[byte] = scaled(product(pairs_[pair].inverse[of % 2], query(heads, head, pair)), its.factor[byte] * per_unit);
        if (is_slope) z[byte] = scaled({z[byte].y, -z[byte].x}, kStep * radians(at<unsigned>(places_.turns)[pair]));
      }
      at<uint4>(places_.z)[i] = make_uint4(pack_f16(z[0].x, z[2].x), pack_f16(z[0].y, z[2].y), pack_f16(z[1].x, z[3].x),
                                           pack_f16(z[1].y, z[3].y));
    }
    for (int i = thread(); i < kGroups * kTiles * kWarp; i += threads()) {
      const int lane = i % kWarp, pair = i / (kWarp * kTiles) * 8 + 2 * (lane % 4), which = lane / 4 % 2;
      const int head = head_of(i / kWarp % kTiles, lane);
      const float top = head < heads.count ? mean_units[2 * head + which] : 0;
      float2 z[2] = {};
      for (int n = 0; n < 2 && top != 0; ++n) {
        z[n] = scaled(product(mean(pair + n, which), query(heads, head, pair + n)), 1 / top);
      }
      at<uint2>(places_.mean_z)[i] = make_uint2(pack_f16(z[0].x, z[1].x), pack_f16(z[0].y, z[1].y));
    }
    __syncthreads();
    for (int i = thread(); i < S::kHeads; i += threads()) {
      const float unit = units[i] == 0 ? 1.0F : units[i] * kCode;
      units[i] = unit * score_scale, mean_units[2 * i] /= unit, mean_units[2 * i + 1] /= unit;
    }
  }

 private:
  static constexpr float kCode = 512;         // a code is multiplied as 1/512 of itself
  static constexpr float kSubnormal = 32768;  // what makes that of a subnormal, whose unit is 2^-24

  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static int threads() { return static_cast<int>(blockDim.x); }
  template <class T>
  __device__ T* at(unsigned place) const {
    return reinterpret_cast<T*>(shared_ + place);
  }
  /// Column g of tile i is head 4 i + g / 2: the even one what it adds, the odd one its slope.
  __device__ static int head_of(int tile, int lane) { return 4 * tile + lane / 8; }
  __device__ CodedKeyWord word(int slot, int lane) const { return table_.key_word[slot][lane % 4]; }
  __device__ int pair_of(const CodedKeyWord& word, int byte) const {
    return word.channel[byte] < 0 ? 0 : at<std::uint16_t>(places_.pair_of)[word.channel[byte]] / 2;
  }

  __device__ void fill_operands() const {
    for (int slot = thread(); slot < places_.slots; slot += threads()) {
      const CodedKeyPair& pair = table_.key_pair[slot / 2];
      const unsigned bits = is_shifted(slot / 2) ? pair.mask[slot % 2] << 4 : pair.mask[slot % 2];
      // What is left out is 1/32 of a coordinate of few bits at most, and 1/500 of one of four or more.
      const auto most = static_cast<unsigned>((is_wide(slot) ? 0.0625F : 0.25F) / kStep * 683565275.6F);
      bool slow = true;
      for (int t = 0; t < 4; ++t) {
        for (int byte = 0; byte < 4; ++byte) {
          const CodedKeyWord its = word(slot, t);
          if (its.channel[byte] >= 0) slow &= at<unsigned>(places_.turns)[pair_of(its, byte)] + most <= 2 * most;
        }
      }
      at<TurnedOperand>(places_.operands)[slot] = {bits & kValueBits, bits >> 8 & kValueBits,
                                                   CodedCopies<S>::kPlaneFactor * pair.plane[slot % 2], slow ? 1U : 0U};
    }
  }
  __device__ bool is_wide(int slot) const { return slot / 2 < table_.pairs.key_end[kWideClass][1]; }
  /// Whether the table has the bits of a pair of operands shifted by 4.
  __device__ bool is_shifted(int pair) const {
    const CodedPairs& ends = table_.pairs;
    return pair < ends.key_end[kWideClass][1] ? pair >= ends.key_end[kWideClass][0]
                                              : pair >= ends.key_end[kNarrowClass][0];
  }
  __device__ static float radians(unsigned turn) {
    return static_cast<float>(static_cast<int>(turn)) * 0x1.921fb6p-30F;
  }
  /// Cosines and sines of two coordinates or pairs, for tokens 16 * half + g and + 8, times a factor.
  __device__ static uint4 table_entry(unsigned first, unsigned second, int half, int lane, float factor) {
    const int d = 2 * (16 * half + lane / 4) - (kStep - 1);  // in halves of a position
    const float2 x = scaled(cos_sin(d * first), factor), y = scaled(cos_sin(d * second), factor);
    const float2 u = scaled(cos_sin((d + 16) * first), factor), v = scaled(cos_sin((d + 16) * second), factor);
    return make_uint4(pack_f16(x.x, y.x), pack_f16(u.x, v.x), pack_f16(x.y, y.y), pack_f16(u.y, v.y));
  }
  __device__ float2 query(const CodedHeads& heads, int head, int pair) const {
    const __nv_bfloat16* const row = heads.q + heads.row(head) * S::kDim;
    return {__bfloat162float(row[pairs_[pair].channel[0]]), __bfloat162float(row[pairs_[pair].channel[1]])};
  }
  /// A pair's mean (0), or what the middles of its narrow coordinates' codes stand for, less than nothing (1).
  __device__ float2 mean(int pair, int which) const {
    const CodedTurnPair& its = pairs_[pair];
    if (which == 0) return {its.mean[0], its.mean[1]};
    const float first = table_.key_middle[its.coordinate[0]], second = table_.key_middle[its.coordinate[1]];
    return {-first * its.inverse[0][0] - second * its.inverse[1][0],
            -first * its.inverse[0][1] - second * its.inverse[1][1]};
  }
  /// (row_0 - i row_1) (q_0 + i q_1).
  __device__ static float2 product(const float (&row)[2], float2 q) { return product(float2{row[0], row[1]}, q); }
  __device__ static float2 product(float2 row, float2 q) {
    return {row.x * q.x + row.y * q.y, row.x * q.y - row.y * q.x};
  }
  __device__ static float2 scaled(float2 z, float factor) { return {z.x * factor, z.y * factor}; }
  __device__ static float size(float2 z) { return sqrtf(z.x * z.x + z.y * z.y); }
  /// Magnitudes are ordered as their bits are, with what is not finite on top.
  __device__ static float larger(float a, float b) {
    return __uint_as_float(max(__float_as_uint(a), __float_as_uint(b)));
  }
  __device__ static void raise(float& shared, float magnitude) {
    atomicMax(reinterpret_cast<unsigned*>(&shared), __float_as_uint(magnitude));
  }

  TurnedPlaces places_;
  unsigned char* shared_;
  const CodedHeadTable& table_;
  const CodedTurnPair* pairs_;
  int is_far_;
};

/// As CodedScores, of keys that turn.
template <class S>
class TurnedScores : public StepScales<S> {
 public:
  using Copies = CodedCopies<S>;
  using StepScales<S>::StepScales, StepScales<S>::scales;

  /// warp: of the block.
  __device__ __forceinline__ void take(const CodedOperands<S>& operands, const TurnedQueries<S>& queries, int warp) {
    const TurnedPlaces& places = queries.places();
    const CodedPairs& pairs = operands.pairs;
    const unsigned from = queries.address();
    slots_ = places.slots, from_ = from;
    wide_ = uniform(2 * pairs.key_end[kWideClass][1]), end_ = uniform(2 * pairs.key_end[kNarrowClass][1]);
    phases_ = from + places.phases + places.phase_bytes * static_cast<unsigned>(warp);
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
      const int head = 4 * i + lane_ % 4;
      unit_[i] = queries.unit(head), mean_unit_[i] = queries.mean_unit(head, 0),
      middle_unit_[i] = queries.mean_unit(head, 1);
    }
  }
  __device__ __forceinline__ float unit(int i) const { return unit_[i]; }

  /// position: of the step's first token.
  __device__ __forceinline__ void find(unsigned stage, unsigned scale_bytes, int valid, int position,
                                       float (&scores)[S::kKeyTiles][S::kHalves][2]) const {
    this->share_scales(stage + scale_bytes);
    turn_to(static_cast<unsigned>(2 * position + Copies::kStep - 1));
    const unsigned rows = kept(stage + 16 * lane_);  // the lane's row in plane 0
    Sums sums = {};
    add_means(sums);
#pragma unroll
    for (int n = 0; n < 2 * S::kHalves * S::kKeyTiles; ++n) {
      const int i = n / (2 * S::kHalves), half = n / 2 % S::kHalves, row = n % 2;
      float(&sum)[4] = sums[i][half];
      scores[i][half][row] = mean_unit_[i] * sum[2 * row];
      sum[2 * row] = middle_unit_[i] * sum[2 * row + 1], sum[2 * row + 1] = 0;
    }
    add_class(kNarrowClass, wide_, end_, rows, sums, scores);
    if (wide_ > 0) {
      Sums others = {};
      add_class(kWideClass, 0, wide_, rows, others, scores);
    }
    this->drop_behind(valid, scores);
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
  /// The row of tile `half` of a table with kKept tiles: cosines of tokens g and g + 8, then sines, which in the second
  /// half of the tiles have the other sign.
  __device__ __forceinline__ uint4 table_row(unsigned table, int half) const {
    if (half < kKept) return load_shared(table + 512 * half + 16 * lane_);
    const uint4 x = load_shared(table + 512 * (S::kHalves - 1 - half) + 16 * (28 - lane_ + 2 * (lane_ % 4)));
    return make_uint4(x.y, x.x, x.w, x.z);
  }

  __device__ __forceinline__ void add_means(Sums& sums) const {
    const unsigned of_z = from_ + places().mean_z + 8 * lane_, table = from_ + places().mean_table;
#pragma unroll 2
    for (int group = 0; group < kGroups; ++group) {
      const uint2 both = load_shared_pair(phases_ + 64 * slots_ + 32 * group + 8 * (lane_ % 4));
      const unsigned cos = __byte_perm(both.x, both.y, 0x5410), sin = __byte_perm(both.x, both.y, 0x7632);
      unsigned a[kTiles], b[kTiles];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint2 z = load_shared_pair(of_z + 256 * (kTiles * group + tile));
        a[tile] = turned(cos, sin, z.x, z.y), b[tile] = turned_across(cos, sin, z.x, z.y);
      }
#pragma unroll
      for (int half = 0; half < S::kHalves; ++half) {
        const uint4 x = table_row(table + kTable * group, half);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          mma<Half::kFloat16>(sums[tile][half], x.x, x.y, x.z, x.w, a[tile], half < kKept ? b[tile] : b[tile] ^ kSigns);
        }
      }
    }
  }

  /// Adds the products of the operands [from, to), which are of one class, to the scores; sums: what there is already.
  __device__ __forceinline__ void add_class(int of_class, int from, int to, unsigned rows, Sums& sums,
                                            float (&scores)[S::kKeyTiles][S::kHalves][2]) const {
#pragma unroll 1
    for (int slot = from; slot < to; ++slot) add_operand(of_class == kWideClass, slot, rows, sums);
#pragma unroll
    for (int n = 0; n < 2 * S::kHalves; ++n) {
      const int half = n / 2, row = n % 2;
      const float2 both = scales(half, row, 0);
      const float s = of_class == kWideClass ? both.x : both.y;
      const float at = static_cast<float>(lane_ / 4) * (2.0F / Copies::kStep) +
                       (2 * (16 * half + 8 * row) - (Copies::kStep - 1)) * (1.0F / Copies::kStep);  // -1 to 1
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) {
        const float(&sum)[4] = sums[i][half];
        scores[i][half][row] += s * __fmaf_rn(at, sum[2 * row + 1], sum[2 * row]);
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

  __device__ __forceinline__ void add_operand(bool wide, int slot, unsigned rows, Sums& sums) const {
    const uint4 operand = load_shared(from_ + places().operands + static_cast<unsigned>(sizeof(TurnedOperand)) * slot);
    const uint4 phase = load_shared(phases_ + 64 * slot + 16 * (lane_ % 4));
    const Codes low{operand.x, 0, wide}, high{operand.y, 8, wide};
    const unsigned plane = rows + operand.z;
    unsigned words[Copies::kPlaneFactor][4];
#pragma unroll
    for (int group = 0; group < Copies::kPlaneFactor; ++group) load_matrices<false>(plane + 512 * group, words[group]);
    uint4 z[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      z[tile] = load_shared(from_ + places().z + 16 * lane_ + 512 * (kTiles * slot + tile));
    if (operand.w != 0) {
      unsigned a[kTiles][2];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        a[tile][0] = turned(phase.x, phase.y, z[tile].x, z[tile].y);
        a[tile][1] = turned(phase.z, phase.w, z[tile].z, z[tile].w);
      }
#pragma unroll
      for (int half = 0; half < S::kHalves; ++half) {
        const unsigned x = words[half / 2][half % 2 * 2], y = words[half / 2][half % 2 * 2 + 1];
        const unsigned codes[4] = {low.of(x), low.of(y), high.of(x), high.of(y)};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          mma<Half::kFloat16>(sums[tile][half], codes[0], codes[1], codes[2], codes[3], a[tile][0], a[tile][1]);
        }
      }
      return;
    }
    const unsigned table = from_ + places().table + 2 * kTable * slot;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const Codes& codes = part == 0 ? low : high;
      if (codes.mask == 0) continue;
      const unsigned cos = part == 0 ? phase.x : phase.z, sin = part == 0 ? phase.y : phase.w;
      unsigned a[kTiles], b[kTiles];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const unsigned real = part == 0 ? z[tile].x : z[tile].z, imaginary = part == 0 ? z[tile].y : z[tile].w;
        a[tile] = turned(cos, sin, real, imaginary), b[tile] = turned_across(cos, sin, real, imaginary);
      }
#pragma unroll
      for (int half = 0; half < S::kHalves; ++half) {
        const uint4 by = table_row(table + kTable * part, half);
        const __half2 x = halves(codes.of(words[half / 2][half % 2 * 2]));
        const __half2 y = halves(codes.of(words[half / 2][half % 2 * 2 + 1]));
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          mma<Half::kFloat16>(sums[tile][half], word_of(__hmul2(x, halves(by.x))), word_of(__hmul2(y, halves(by.y))),
                              word_of(__hmul2(x, halves(by.z))), word_of(__hmul2(y, halves(by.w))), a[tile],
                              half < kKept ? b[tile] : b[tile] ^ kSigns);
        }
      }
    }
  }

  int slots_, wide_, end_;  // operands; where those of each class end
  unsigned from_, phases_;  // where shared memory has what the block prepared, and this warp's phases
  float unit_[S::kKeyTiles], mean_unit_[S::kKeyTiles], middle_unit_[S::kKeyTiles];
};

}  // namespace oscar::cuda
