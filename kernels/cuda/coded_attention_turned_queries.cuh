// SPDX-License-Identifier: MIT
// Keys before RoPE in the coded decode kernel: how they are read, and what a block makes of its queries for that.
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

/// An operand of the keys: the bits of its low and its high part, each twice, where its plane is, and its slot.
struct alignas(16) TurnedOperand {
  unsigned low, high, plane, slot;
};
/// In which order a warp takes operands: of each class first those that add y_c (A_c + d f B_c).
enum TurnedKind { kWideSlow, kWideFast, kNarrowSlow, kNarrowFast, kTurnedKinds };  // the last: it has no bits

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
        all_pairs_(static_cast<const CodedTurnPair*>(args.turned.table) + kv_head * (S::kDim / 2)),
        is_far_(args.turned.is_far) {}

  [[nodiscard]] __device__ const TurnedPlaces& places() const { return places_; }
  [[nodiscard]] __device__ unsigned address() const { return static_cast<unsigned>(__cvta_generic_to_shared(shared_)); }
  /// What a unit of a head's scores is worth; not finite if one of its queries is not.
  [[nodiscard]] __device__ float unit(int head) const { return at<float>(places_.units)[head]; }
  /// Where a kind of operands ends among those that are read.
  [[nodiscard]] __device__ int end(int kind) const {
    return at<int>(places_.operands + sizeof(TurnedOperand) * (places_.slots + 1))[kind];
  }

  /// Fills what does not depend on queries. By all threads, as store().
  __device__ void prepare() {
    static_assert(sizeof(CodedTurnPair) == 64 && sizeof(CodedKeyWord[4]) == 96);
    copy(places_.pairs, all_pairs_, 32 * S::kDim);
    copy(places_.words, table_.key_word, 96 * places_.slots);
    copy(places_.tops, table_.key_top, 4 * S::kDim);
    copy(places_.middles, table_.key_middle, 4 * S::kDim);
    __syncthreads();
    auto* const of = at<std::uint16_t>(places_.pair_of);  // coordinates among the pairs: 2 * pair + 0 or 1
    auto* const turns = at<unsigned>(places_.turns);
    for (int i = thread(); i < S::kDim; i += threads()) {
      of[pair(i / 2).coordinate[i % 2]] = static_cast<std::uint16_t>(i);
      if (i % 2 == 0) turns[i / 2] = half_turn(pair(i / 2).frequency[is_far_ != 0 ? 1 : 0]);
    }
    __syncthreads();
    find_kinds();
    for (int i = thread(); i < 4 * places_.slots; i += threads()) {
      const auto place = [&](int byte) { return static_cast<unsigned>(4 * pair_of(word(i / 4, i), byte)); };
      at<uint2>(places_.gather)[i] = make_uint2(place(0) | place(2) << 16, place(1) | place(3) << 16);
    }
    for (int i = thread(); i < kKept * kWarp * kGroups / 2; i += threads()) {  // two groups' cosines, then their sines
      const int lane = i % kWarp, half = i / kWarp % kKept, part = i / (kWarp * kKept);
      const int first = part * 16 + 2 * (lane % 4);
      const uint4 x = table_entry(turns[first], turns[first + 1], half, lane, 1.0F);
      const uint4 y = table_entry(turns[first + 8], turns[first + 9], half, lane, 1.0F);
      uint4* const to = at<uint4>(places_.mean_table) + kWarp * (2 * kKept * part + half) + lane;
      to[0] = make_uint4(x.x, x.y, y.x, y.y), to[kWarp * kKept] = make_uint4(x.z, x.w, y.z, y.w);
    }
    __syncthreads();
    if (uniform(thread() / kWarp) == 0) order_operands(thread() % kWarp);
    for (int i = thread(); i < 2 * kKept * kWarp * places_.slots; i += threads()) {
      const int lane = i % kWarp, half = i / kWarp % kKept, part = i / (kWarp * kKept), slot = part / 2;
      if (at<int>(places_.kinds)[slot] % 2 == 0) continue;  // nobody reads it
      const CodedKeyWord& its = word(slot, lane);
      at<uint4>(places_.table)[i] = table_entry(turns[pair_of(its, part % 2)], turns[pair_of(its, part % 2 + 2)], half,
                                                lane, is_wide(slot) ? 1.0F : kSubnormal);
    }
  }

  /// Begins to copy queries, as one group.
  __device__ __forceinline__ void fetch(const CodedHeads& heads) const {
    constexpr int kPieces = S::kDim / 8;
    for (int i = thread(); i < heads.count * kPieces; i += threads()) {
      copy_async<16>(address() + places_.queries + 16 * i,
                     heads.q + heads.row(i / kPieces) * S::kDim + i % kPieces * 8);
    }
    commit_copies();
  }

  /// Makes z of all heads. Two groups of copies may have begun after fetch().
  __device__ void store(const CodedHeads& heads, float score_scale) {
    float *const units = at<float>(places_.units), *const mean_units = at<float>(places_.mean_units);
    for (int i = thread(); i < S::kHeads; i += threads()) units[i] = mean_units[2 * i] = mean_units[2 * i + 1] = 0;
    wait_for_copies<2>();
    __syncthreads();
    for (int i = thread(); i < heads.count * S::kDim / 2; i += threads()) {
      const int head = i / (S::kDim / 2), which_pair = i % (S::kDim / 2);
      const float2 q = query(head, which_pair);
      const CodedTurnPair& its = pair(which_pair);
      raise(units[head], larger(at<float>(places_.tops)[its.coordinate[0]] * size(product(its.inverse[0], q)),
                                at<float>(places_.tops)[its.coordinate[1]] * size(product(its.inverse[1], q))));
      for (int which = 0; which < 2; ++which) {
        raise(mean_units[2 * head + which], size(product(mean(which_pair, which), q)));
      }
    }
    __syncthreads();
    for (int i = thread(); i < places_.slots * kTiles * kWarp; i += threads()) {
      const int lane = i % kWarp, slot = i / (kWarp * kTiles), head = head_of(i / kWarp % kTiles, lane);
      const bool is_slope = lane / 4 % 2 == 1, is_slow = at<int>(places_.kinds)[slot] % 2 == 0;
      float per_unit = head < heads.count && units[head] != 0 ? 1 / units[head] : 0;
      if (is_shifted(slot / 2)) per_unit *= 0.0625F;  // here their bits stay where they are
      if (is_slow && !is_wide(slot)) per_unit *= kSubnormal;
      if (is_slope && !is_slow) per_unit = 0;
      const CodedKeyWord& its = word(slot, lane);
      float2 z[4] = {};
      for (int byte = 0; byte < 4; ++byte) {
        if (its.channel[byte] < 0 || per_unit == 0) continue;
        const int of = at<std::uint16_t>(places_.pair_of)[its.channel[byte]];
        z[byte] = scaled(product(pair(of / 2).inverse[of % 2], query(head, of / 2)), its.factor[byte] * per_unit);
        if (is_slope) z[byte] = scaled({z[byte].y, -z[byte].x}, kStep * radians(at<unsigned>(places_.turns)[of / 2]));
      }
      at<uint4>(places_.z)[i] = make_uint4(pack_f16(z[0].x, z[2].x), pack_f16(z[0].y, z[2].y), pack_f16(z[1].x, z[3].x),
                                           pack_f16(z[1].y, z[3].y));
    }
    for (int i = thread(); i < kGroups * kTiles * kWarp; i += threads()) {
      const int lane = i % kWarp, first = i / (kWarp * kTiles) * 8 + 2 * (lane % 4), which = lane / 4 % 2;
      const int head = head_of(i / kWarp % kTiles, lane);
      const float top = head < heads.count ? mean_units[2 * head + which] : 0;
      float2 z[2] = {};
      for (int n = 0; n < 2 && top != 0; ++n) {
        z[n] = scaled(product(mean(first + n, which), query(head, first + n)), 1 / top);
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

  /// Copies whole 16 bytes.
  __device__ void copy(unsigned to, const void* from, int bytes) const {
    for (int i = thread(); i < bytes / 16; i += threads()) at<uint4>(to)[i] = static_cast<const uint4*>(from)[i];
  }
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static int threads() { return static_cast<int>(blockDim.x); }
  template <class T>
  __device__ T* at(unsigned place) const {
    return reinterpret_cast<T*>(shared_ + place);
  }
  /// Column g of tile i is head 4 i + g / 2: the even one what it adds, the odd one its slope.
  __device__ static int head_of(int tile, int lane) { return 4 * tile + lane / 8; }
  __device__ const CodedKeyWord& word(int slot, int lane) const {
    return at<CodedKeyWord>(places_.words)[4 * slot + lane % 4];
  }
  __device__ const CodedTurnPair& pair(int i) const { return at<CodedTurnPair>(places_.pairs)[i]; }
  __device__ int pair_of(const CodedKeyWord& word, int byte) const {
    return word.channel[byte] < 0 ? 0 : at<std::uint16_t>(places_.pair_of)[word.channel[byte]] / 2;
  }

  /// A lane looks at one coordinate of an operand.
  __device__ void find_kinds() const {
    for (int i = thread(); i < (16 * places_.slots + kWarp - 1) / kWarp * kWarp; i += threads()) {
      const int slot = min(i / 16, places_.slots - 1);
      const unsigned fast = __ballot_sync(kAllLanes, !is_slow(slot, i % 16)) >> i % kWarp & 0xffff;
      if (i % 16 != 0) continue;
      const bool empty = slot >= 2 * table_.pairs.key_end[kNarrowClass][1] || bits_of(slot) == 0;
      at<int>(places_.kinds)[slot] = empty ? kTurnedKinds : 2 * (is_wide(slot) ? 0 : 1) + (fast == 0 ? 0 : 1);
    }
  }
  /// Lists the operands by kind, those of a kind in their order. By one warp.
  __device__ void order_operands(int lane) const {
    static_assert(kMostKeyOperands <= 2 * kWarp);
    const unsigned before_lane = (1U << lane) - 1;
    int kinds[2], places[2] = {}, end = 0;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int slot = lane + n * kWarp;
      kinds[n] = slot < places_.slots ? at<int>(places_.kinds)[slot] : kTurnedKinds;
    }
    for (int kind = 0; kind < kTurnedKinds; ++kind) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const unsigned of_kind = __ballot_sync(kAllLanes, kinds[n] == kind);
        if (kinds[n] == kind) places[n] = end + __popc(of_kind & before_lane);
        end += __popc(of_kind);
      }
      if (lane == 0) at<int>(places_.operands + sizeof(TurnedOperand) * (places_.slots + 1))[kind] = end;  // see end()
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int slot = lane + n * kWarp;
      if (kinds[n] == kTurnedKinds) continue;
      at<TurnedOperand>(places_.operands)[places[n]] = {
          bits_of(slot) & kPairBits, bits_of(slot) >> 8 & kPairBits,
          CodedCopies<S>::kPlaneFactor * table_.key_pair[slot / 2].plane[slot % 2], static_cast<unsigned>(slot)};
    }
  }
  __device__ unsigned bits_of(int slot) const {
    const unsigned mask = table_.key_pair[slot / 2].mask[slot % 2];
    return is_shifted(slot / 2) ? mask << 4 : mask;
  }
  /// Whether this coordinate of an operand hardly turns in half a step, or is none.
  __device__ bool is_slow(int slot, int coordinate) const {
    // What is left out is 1/32 of a coordinate of few bits at most, and 1/500 of one of four or more.
    const auto most = static_cast<unsigned>((is_wide(slot) ? 0.0625F : 0.25F) / kStep * 683565275.6F);
    const CodedKeyWord& its = word(slot, coordinate / 4);
    if (its.channel[coordinate % 4] < 0) return true;
    return at<unsigned>(places_.turns)[pair_of(its, coordinate % 4)] + most <= 2 * most;
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
  /// Of a pair's channels.
  __device__ float2 query(int head, int which_pair) const {
    const auto* const row = at<__nv_bfloat16>(places_.queries) + head * S::kDim;
    const CodedTurnPair& its = pair(which_pair);
    return {__bfloat162float(row[its.channel[0]]), __bfloat162float(row[its.channel[1]])};
  }
  /// A pair's mean (0), or what the middles of its narrow coordinates' codes stand for, less than nothing (1).
  __device__ float2 mean(int which_pair, int which) const {
    const CodedTurnPair& its = pair(which_pair);
    if (which == 0) return {its.mean[0], its.mean[1]};
    const auto* const middles = at<float>(places_.middles);
    const float first = middles[its.coordinate[0]], second = middles[its.coordinate[1]];
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
  /// By all lanes of a warp, for one head.
  __device__ static void raise(float& shared, float magnitude) {
    const unsigned most = __reduce_max_sync(kAllLanes, __float_as_uint(magnitude));
    if (thread() % kWarp == 0) atomicMax(reinterpret_cast<unsigned*>(&shared), most);
  }

  TurnedPlaces places_;
  unsigned char* shared_;
  const CodedHeadTable& table_;
  const CodedTurnPair* all_pairs_;
  int is_far_;
};

}  // namespace oscar::cuda
