// SPDX-License-Identifier: MIT
// Keys before RoPE in the coded decode kernel: how they are read, and what a block makes of its queries for that.
//
// A key at position j of a block of positions (kernels/rotary.hpp) whose middle is a is, pair by pair, x = y W^-1, in
// pairs that are not fast turned with their means by a f, and the means of fast pairs turned by j f. So coordinate y_c
// adds to the score of a query (q_0, q_1)
//   y_c Re(exp(-i a f) z_c),   z_c = (W^-1_c0 - i W^-1_c1) (q_0 + i q_1),
// with f = 0 in a fast pair, and a mean what a coordinate 1 would add whose row of W^-1 is the mean, by j in place of a
// in a fast pair. A warp, or a team together, makes CodedQueries of z once for all its tokens of a block of
// positions, which are read as those of keys that do not turn. Means of fast pairs are products of their own, around
// the middle m of a step of 32 or 64 tokens, with cosines and sines of (j - m) f that are the same in all steps: a
// thread block computes them once, and a warp turns z by m f once a step. Such products, and the words of CodedQueries,
// are of float16. No row of a key is ever made, and no code is multiplied but by a tensor core.
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

/// What a block prepares before its warps read tokens: see TurnedPlaces.
template <class S>
class TurnedQueries {
 public:
  static constexpr int kStep = CodedCopies<S>::kStep, kTiles = S::kKeyTiles, kKept = S::kHalves / 2;
  static constexpr int kPairs = S::kDim / 2, kChunk = 16, kChunks = kPairs / kChunk;  // pairs

  /// shared: places().end bytes.
  __device__ TurnedQueries(unsigned char* shared, const CodedHeadTable& table, const oscar_coded_decode_args& args,
                           int kv_head, int warps)
      : places_(S::kDim, kStep, S::kKeyTiles, args.layout.key_operands, warps),
        shared_(shared),
        table_(table),
        all_pairs_(static_cast<const CodedTurnPair*>(args.turned.table) + kv_head * kPairs),
        operand_pairs_(args.layout.key_operands / 2),
        is_far_(args.turned.is_far) {}

  [[nodiscard]] __device__ const TurnedPlaces& places() const { return places_; }
  [[nodiscard]] __device__ unsigned address() const { return static_cast<unsigned>(__cvta_generic_to_shared(shared_)); }
  /// What a unit of a head's scores is worth; not finite if one of its queries is not.
  [[nodiscard]] __device__ float unit(int head) const { return at<float>(places_.units)[head]; }
  /// Pairs that are fast: the first ones.
  [[nodiscard]] __device__ int fast() const { return fast_; }
  /// Chunks that they take.
  [[nodiscard]] __device__ int fast_chunks() const { return (fast_ + kChunk - 1) / kChunk; }

  /// Fills what does not depend on queries. By all threads, as store().
  __device__ void prepare() {
    static_assert(sizeof(CodedTurnPair) == 64 && sizeof(CodedKeyWord[4]) == 96);
    copy(places_.pairs, all_pairs_, 32 * S::kDim);
    copy(places_.words, table_.key_word, 192 * operand_pairs_);
    copy(places_.tops, table_.key_top, 4 * S::kDim);
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    auto* const of = at<std::uint16_t>(places_.pair_of);
    auto* const turns = at<unsigned>(places_.turns);
    fast_ = 0;
    for (int first = 0; first < S::kDim; first += threads()) {
      const int i = first + thread();
      bool is_fast = false;
      if (i < S::kDim) {
        of[pair(i / 2).coordinate[i % 2]] = static_cast<std::uint16_t>(i);
        if (i % 2 == 0) turns[i / 2] = half_turn(pair(i / 2).frequency[is_far_ != 0 ? 1 : 0]);
        is_fast = i % 2 == 0 && pair(i / 2).is_fast != 0;
      }
      fast_ += __syncthreads_count(is_fast ? 1 : 0);
    }
    for (int i = thread(); i < 8 * operand_pairs_; i += threads()) {
      const CodedKeyWord& its = at<CodedKeyWord>(places_.words)[i];
      const auto place = [&](int byte) {  // of no coordinate: anywhere
        return static_cast<unsigned>(its.channel[byte] < 0 ? 0 : of[its.channel[byte]] / 2 * 4);
      };
      at<uint2>(places_.gather)[i] = make_uint2(place(0) | place(1) << 16, place(2) | place(3) << 16);
    }
    for (int i = thread(); i < kKept * kWarp * fast_chunks(); i += threads()) {
      const int lane = i % kWarp, half = i / kWarp % kKept, chunk = i / (kWarp * kKept);
      const int first = kChunk * chunk + 2 * (lane % 4);
      const uint4 x = table_entry(turns[first], turns[first + 1], half, lane);
      const uint4 y = table_entry(turns[first + 8], turns[first + 9], half, lane);
      uint4* const to = at<uint4>(places_.mean_table) + kWarp * (2 * kKept * chunk + half) + lane;
      to[0] = make_uint4(x.x, x.y, y.x, y.y), to[kWarp * kKept] = make_uint4(x.z, x.w, y.z, y.w);
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

  /// Makes z of all heads. Two groups of copies may have begun after fetch(). What is here only to begin with has been
  /// read when all threads are through.
  __device__ void store(const CodedHeads& heads, float score_scale) {
    float *const units = at<float>(places_.units), *const mean_units = at<float>(places_.mean_units);
    for (int i = thread(); i < S::kHeads; i += threads()) units[i] = mean_units[i] = 0;
    wait_for_copies<2>();
    __syncthreads();
    for (int i = thread(); i < heads.count * kPairs; i += threads()) {
      const int head = i / kPairs, which_pair = i % kPairs;
      const float2 q = query(head, which_pair);
      const CodedTurnPair& its = pair(which_pair);
      raise(units[head], larger(at<float>(places_.tops)[its.coordinate[0]] * size(product(its.inverse[0], q)),
                                at<float>(places_.tops)[its.coordinate[1]] * size(product(its.inverse[1], q))));
      raise(mean_units[head], size(product(its.mean, q)));
    }
    __syncthreads();
    for (int i = thread(); i < operand_pairs_ * kTiles * kWarp; i += threads()) {
      const int lane = i % kWarp, head = 4 * (i / kWarp % kTiles) + lane / 8;
      const CodedKeyWord& its = at<CodedKeyWord>(places_.words)[8 * (i / (kWarp * kTiles)) + lane % 8];
      const float top = head < heads.count ? units[head] : 0, per_unit = top == 0 ? 0 : kHighest / top;
      float2 z[4] = {};
      for (int byte = 0; byte < 4; ++byte) {
        if (its.channel[byte] < 0 || per_unit == 0) continue;
        const int of = at<std::uint16_t>(places_.pair_of)[its.channel[byte]];
        z[byte] = scaled(product(pair(of / 2).inverse[of % 2], query(head, of / 2)), its.factor[byte] * per_unit);
      }
      at<uint4>(places_.z)[i] = make_uint4(pack_f16(z[0].x, z[1].x), pack_f16(z[0].y, z[1].y), pack_f16(z[2].x, z[3].x),
                                           pack_f16(z[2].y, z[3].y));
    }
    for (int i = thread(); i < 2 * kChunks * kTiles * kWarp; i += threads()) {
      const int lane = i % kWarp, chunk = i / (kWarp * kTiles) % kChunks, head = 4 * (i / kWarp % kTiles) + lane / 8;
      const bool of_fast = i < kChunks * kTiles * kWarp;
      const int first = kChunk * chunk + 2 * (lane % 4);
      const float top = head < heads.count ? mean_units[head] : 0;
      float2 z[4] = {};
      for (int n = 0; n < 4 && top != 0; ++n) {
        const int which_pair = first + n % 2 + 8 * (n / 2);
        if ((which_pair < fast_) != of_fast) continue;
        z[n] = scaled(product(pair(which_pair).mean, query(head, which_pair)), 1 / top);
        if (of_fast && lane / 4 % 2 == 0) z[n].y = -z[n].y;  // see TurnedScores::find_means()
      }
      at<uint4>(places_.mean_z)[i] = make_uint4(pack_f16(z[0].x, z[1].x), pack_f16(z[0].y, z[1].y),
                                                pack_f16(z[2].x, z[3].x), pack_f16(z[2].y, z[3].y));
    }
    __syncthreads();
    for (int i = thread(); i < S::kHeads; i += threads()) {
      const float unit = units[i] == 0 ? 1.0F : units[i] / CodedQueries<S>::kLargest;
      units[i] = unit * score_scale, mean_units[i] /= unit;
    }
  }

 private:
  static constexpr float kHighest = CodedQueries<S>::kLargest / 256;

  /// Begins to copy whole 16 bytes.
  __device__ void copy(unsigned to, const void* from, int bytes) const {
    for (int i = thread(); i < bytes / 16; i += threads()) {
      copy_async<16>(address() + to + 16 * i, static_cast<const unsigned char*>(from) + 16 * i);
    }
  }
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static int threads() { return static_cast<int>(blockDim.x); }
  template <class T>
  __device__ T* at(unsigned place) const {
    return reinterpret_cast<T*>(shared_ + place);
  }
  __device__ const CodedTurnPair& pair(int i) const { return at<CodedTurnPair>(places_.pairs)[i]; }

  /// Cosines and sines of two pairs, for tokens 16 * half + g and + 8.
  __device__ static uint4 table_entry(unsigned first, unsigned second, int half, int lane) {
    const int d = 2 * (16 * half + lane / 4) - (kStep - 1);  // in halves of a position
    const float2 x = cos_sin(d * first), y = cos_sin(d * second);
    const float2 u = cos_sin((d + 16) * first), v = cos_sin((d + 16) * second);
    return make_uint4(pack_f16(x.x, y.x), pack_f16(u.x, v.x), pack_f16(x.y, y.y), pack_f16(u.y, v.y));
  }
  /// Of a pair's channels.
  __device__ float2 query(int head, int which_pair) const {
    const auto* const row = at<__nv_bfloat16>(places_.queries) + head * S::kDim;
    const CodedTurnPair& its = pair(which_pair);
    return {__bfloat162float(row[its.channel[0]]), __bfloat162float(row[its.channel[1]])};
  }
  /// (row_0 - i row_1) (q_0 + i q_1).
  __device__ static float2 product(const float (&row)[2], float2 q) {
    return {row[0] * q.x + row[1] * q.y, row[0] * q.y - row[1] * q.x};
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
  int operand_pairs_, is_far_;
  int fast_ = 0;
};

}  // namespace oscar::cuda
