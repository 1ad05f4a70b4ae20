// SPDX-License-Identifier: MIT
// Keys before RoPE in the coded decode kernel: the scores of a warp, of what TurnedQueries prepared for its thread
// block.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/coded_attention_scores.cuh"
#include "kernels/cuda/coded_attention_turned_queries.cuh"

namespace oscar::cuda {

/// As CodedScores, of keys that turn.
template <class S>
class TurnedScores : public CodedScores<S> {
 public:
  using Copies = CodedCopies<S>;
  using CodedScores<S>::CodedScores, CodedScores<S>::is_mirrored, CodedScores<S>::token;
  using Block = TurnedQueries<S>;

  /// warp: of the block.
  __device__ __forceinline__ void take(const CodedOperands<S>& operands, const Block& block, int warp) {
    const TurnedPlaces& places = block.places();
    from_ = kept(block.address()), z_ = kept(from_ + places.z + 16 * lane_);
    own_ = kept(from_ + places.own + places.own_bytes * static_cast<unsigned>(warp));
    words_ = kept(from_ + places.team + places.team_bytes * static_cast<unsigned>(warp / S::kTeam));
    word_bytes_ = places.word_bytes, rank_ = warp % S::kTeam;
    fast_ = uniform(block.fast()), fast_chunks_ = uniform(block.fast_chunks());
    CodedScores<S>::take(operands);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) this->set_unit(i, block.unit(4 * i + lane_ % 4));
  }

  /// position: of the step's first token. sync(): waits for all warps of the team, which call this at the same time.
  template <class Sync>
  __device__ __forceinline__ void find(unsigned stage, unsigned scale_bytes, int valid, int position,
                                       float (&scores)[S::kKeyTiles][S::kHalves][2], const Sync& sync) {
    this->share_scales(stage + scale_bytes, valid);
    if constexpr (S::kTeam > 1) share_words(position, sync);
    if (turn_anchor(position) != anchor_) turn_to(turn_anchor(position));
    find_means(2U * static_cast<unsigned>(position) + Copies::kStep - 1, scores);
    const int end = anchor_ + kTurnBlock / 2 - position;  // of the tokens of this block of positions
    const bool cut = end < min(Copies::kStep, valid);
    if (cut) [[unlikely]]
      this->drop_key_scales(0, end);
    this->add_all(stage, scores);
    if (cut) [[unlikely]] {  // where a history's first position is no multiple of a step
      add_levels(end, -1, scores);
      turn_to(anchor_ + kTurnBlock);
      add_levels(end, 1, scores);
      this->share_scales(stage + scale_bytes, valid);
      this->drop_key_scales(end, Copies::kStep);
      this->add_all(stage, scores);
    }
  }

 private:
  using CodedScores<S>::lane_;
  static constexpr int kTiles = S::kKeyTiles, kKept = S::kHalves / 2, kPairs = S::kDim / 2;
  static constexpr TurnedPlaces kPlaces{S::kDim, Copies::kStep, kTiles, 0, 0};
  static constexpr unsigned kOnes = 0x3c003c00, kSigns = 0x80008000;  // of float16

  __device__ __forceinline__ static __half2 halves(unsigned word) { return reinterpret_cast<const __half2&>(word); }
  __device__ __forceinline__ static unsigned word_of(__half2 pair) { return reinterpret_cast<const unsigned&>(pair); }

  /// z of two pairs or coordinates times exp(-i angle): the real part, and the imaginary.
  __device__ __forceinline__ static unsigned turned(unsigned cos, unsigned sin, unsigned real, unsigned imaginary) {
    return word_of(__hfma2(halves(cos), halves(real), __hmul2(halves(sin), halves(imaginary))));
  }
  __device__ __forceinline__ static unsigned turned_across(unsigned cos, unsigned sin, unsigned real,
                                                           unsigned imaginary) {
    return word_of(__hfma2(halves(cos), halves(imaginary), __hneg2(__hmul2(halves(sin), halves(real)))));
  }
  /// Cosines and sines of two, of which each word has both.
  __device__ __forceinline__ static unsigned low_halves(unsigned a, unsigned b) { return __byte_perm(a, b, 0x5410); }
  __device__ __forceinline__ static unsigned high_halves(unsigned a, unsigned b) { return __byte_perm(a, b, 0x7632); }

  /// Makes what is the same for all keys of the block of positions with this middle.
  __device__ __forceinline__ void turn_to(int anchor) {
    anchor_ = anchor;
    turn_phases(anchor);
    if constexpr (S::kTeam == 1) {
#pragma unroll 1
      for (int i = 0; i < this->operand_pairs(); ++i) make_words(i, words_);
      __syncwarp();
    }
    find_levels();
    this->set_queries(words_of(anchor) + 8 * lane_);
  }
  /// Makes the words of all blocks of positions that a team's tokens of a step are in, each warp its share.
  template <class Sync>
  __device__ __forceinline__ void share_words(int position, const Sync& sync) {
    static_assert(S::kTeam * Copies::kStep <= kTurnBlock, "a team has words of two blocks");
    const int first = position - rank_ * Copies::kStep, last = turn_anchor(first + S::kTeam * Copies::kStep - 1);
    if (made_ >= last) return;
    do {
      made_ = made_ < 0 ? turn_anchor(first) : made_ + kTurnBlock;
      turn_phases(made_);
#pragma unroll 1
      for (int i = rank_; i < this->operand_pairs(); i += S::kTeam) make_words(i, words_of(made_));
    } while (made_ < last);
    sync();
  }
  __device__ __forceinline__ unsigned words_of(int anchor) const {
    return S::kTeam == 1 ? words_ : words_ + (anchor / kTurnBlock % 2 == 0 ? 0 : word_bytes_);
  }
  /// Turns the pairs that are not fast to there.
  __device__ __forceinline__ void turn_phases(int anchor) const {
    __syncwarp();  // every lane has read the phases before, and the words that are made of them
#pragma unroll
    for (int i = 0; i < kPairs; i += kWarp) {
      const unsigned turn = load_shared_word(from_ + kPlaces.turns + 4 * (i + lane_));
      const float2 a = cos_sin(i + lane_ < fast_ ? 0 : 2U * static_cast<unsigned>(anchor) * turn);
      store_shared_word(own_ + 4 * (i + lane_), pack_f16(a.x, a.y));
    }
    __syncwarp();
  }

  /// What means of pairs that are not fast add to scores.
  __device__ __forceinline__ void find_levels() {
    float sums[kTiles][4] = {};
    const unsigned of_z = from_ + kPlaces.mean_z + 512 * kTiles * Block::kChunks + 16 * lane_;
    const unsigned phases = own_ + 8 * (lane_ % 4);
#pragma unroll(kTiles == 1 ? 4 : 1)
    for (int chunk = 0; chunk < Block::kChunks; ++chunk) {
      const uint2 x = load_shared_pair(phases + 64 * chunk), y = load_shared_pair(phases + 64 * chunk + 32);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4 z = load_shared(of_z + 512 * (kTiles * chunk + tile));
        mma<Half::kFloat16>(sums[tile], kOnes, kOnes, kOnes, kOnes,
                            turned(low_halves(x.x, x.y), high_halves(x.x, x.y), z.x, z.y),
                            turned(low_halves(y.x, y.y), high_halves(y.x, y.y), z.z, z.w));
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) level_[i] = mean_unit(i) * sums[i][0];
  }
  /// Adds them to those of tokens behind `from` once more, or takes them away.
  __device__ void add_levels(int from, float factor, float (&scores)[kTiles][S::kHalves][2]) const {
#pragma unroll
    for (int n = 0; n < 2 * S::kHalves * kTiles; ++n) {
      const int i = n / (2 * S::kHalves), half = n / 2 % S::kHalves, row = n % 2;
      if (token(half, row) >= from) scores[i][half][row] += factor * level_[i];
    }
  }
  __device__ __forceinline__ float mean_unit(int i) const {
    return __uint_as_float(load_shared_word(from_ + kPlaces.mean_units + 4 * (lane_ % 4) + 16 * i));
  }

  /// The words of CodedQueries of the i-th pair of operands: this lane those of one head and word.
  __device__ __forceinline__ void make_words(int i, unsigned words) const {
    const uint2 at = load_shared_pair(from_ + kPlaces.gather + 8 * (lane_ % 8) + 64 * i);
    words += 64 * (lane_ / 8) + 8 * (lane_ % 4) + lane_ % 8 / 4 * 4;
    const unsigned p0 = load_shared_word(own_ + (at.x & 0xffff)), p1 = load_shared_word(own_ + (at.x >> 16));
    const unsigned p2 = load_shared_word(own_ + (at.y & 0xffff)), p3 = load_shared_word(own_ + (at.y >> 16));
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint4 z = load_shared(z_ + 512 * (kTiles * i + tile));
      const uint2 x = in_bytes(turned(low_halves(p0, p1), high_halves(p0, p1), z.x, z.y));
      const uint2 y = in_bytes(turned(low_halves(p2, p3), high_halves(p2, p3), z.z, z.w));
      const unsigned to = words + CodedQueries<S>::kPairBytes * i + CodedQueries<S>::kTileBytes * tile;
      store_shared_word(to, __byte_perm(x.x, y.x, 0x6420));
      store_shared_word(to + 32, __byte_perm(x.y, y.y, 0x6420));
    }
  }
  /// Of two numbers of less than 127.5, in each half's low byte: the nearest integer, and 256 times what it lacks. A
  /// float16 from 1024 to 2048 has an integer in its lowest bits.
  __device__ __forceinline__ static uint2 in_bytes(unsigned numbers) {
    const __half2 shift = __float2half2_rn(1536), x = halves(numbers), high = __hadd2(x, shift);
    const __half2 rest = __hsub2(x, __hsub2(high, shift));
    return {word_of(high), word_of(__hmin2(__hfma2(rest, __float2half2_rn(256), shift), __float2half2_rn(1536 + 127)))};
  }

  /// What means add to the scores of a step whose middle is at twice_middle / 2.
  __device__ __forceinline__ void find_means(unsigned twice_middle, float (&scores)[kTiles][S::kHalves][2]) const {
    const unsigned steps = own_ + kPlaces.own_steps;
    // Of each two pairs cos, sin, cos, -sin.
#pragma unroll 1
    for (int i = 2 * lane_; i < Block::kChunk * fast_chunks_; i += 2 * kWarp) {
      const uint2 turns = load_shared_pair(from_ + kPlaces.turns + 4 * i);
      const float2 a = cos_sin(twice_middle * turns.x), b = cos_sin(twice_middle * turns.y);
      const unsigned cos = pack_f16(a.x, b.x), sin = pack_f16(a.y, b.y);
      store_shared(steps + 8 * i, make_uint4(cos, sin, cos, sin ^ kSigns));
    }
    __syncwarp();
    float sums[kTiles][kKept][4] = {};  // row g behind the middle and before it, then row g + 8
    // Columns of tokens behind the middle have conjugates, since the table has those before it.
    unsigned phases = steps + 16 * (lane_ % 4) + (lane_ / 4 % 2 == 0 ? 8 : 0);
    unsigned of_z = from_ + kPlaces.mean_z + 16 * lane_, table = from_ + kPlaces.mean_table + 16 * lane_;
#pragma unroll 1
    for (int chunk = 0; chunk < fast_chunks_; ++chunk, phases += 128, of_z += 512 * kTiles, table += 1024 * kKept) {
      const uint2 x = load_shared_pair(phases), y = load_shared_pair(phases + 64);
      unsigned a[kTiles][2], b[kTiles][2];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4 z = load_shared(of_z + 512 * tile);
        a[tile][0] = turned(x.x, x.y, z.x, z.y), b[tile][0] = turned_across(x.x, x.y, z.x, z.y);
        a[tile][1] = turned(y.x, y.y, z.z, z.w), b[tile][1] = turned_across(y.x, y.y, z.z, z.w);
      }
#pragma unroll
      for (int half = 0; half < kKept; ++half) {
        const uint4 cos = load_shared(table + 512 * half), sin = load_shared(table + 512 * (kKept + half));
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          mma<Half::kFloat16>(sums[tile][half], cos.x, cos.y, cos.z, cos.w, a[tile][0], a[tile][1]);
          mma<Half::kFloat16>(sums[tile][half], sin.x, sin.y, sin.z, sin.w, b[tile][0], b[tile][1]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const float unit = mean_unit(i);
#pragma unroll
      for (int n = 0; n < 2 * S::kHalves; ++n) {
        const int half = n / 2, row = n % 2, kept = is_mirrored(half) ? S::kHalves - 1 - half : half;
        scores[i][half][row] = __fmaf_rn(unit, sums[i][kept][2 * row + (is_mirrored(half) ? 0 : 1)], level_[i]);
      }
    }
  }

  unsigned from_, own_, z_;  // where shared memory has what the block prepared, what the warp makes of it, the lane's z
  unsigned words_, word_bytes_;  // the team's, of a block of positions
  int rank_, fast_, fast_chunks_;
  int anchor_ = -1, made_ = -1;  // middles of the block of positions of middle_ and level_, of the last that has words
  float level_[kTiles];
};

}  // namespace oscar::cuda
