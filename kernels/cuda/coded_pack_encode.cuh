// SPDX-License-Identifier: MIT
// Codes and scales of 32 rows of a head for oscar_coded_pack(), from shared memory into pages.
#pragma once

#include "kernels/cuda/coded_pack_places.cuh"

namespace oscar::cuda {

/// Encodes and writes the rows of a warp's tile.
template <int kDim, bool kRotated>
class CodedEncoder {
 public:
  __device__ __forceinline__ CodedEncoder(const CodedTile<kDim>& tile, const CodedPackSide& side,
                                          const CodedPackScales& scales, const PagePlaces& places, int value_side)
      : tile_(tile), side_(side), scales_(scales), places_(places), value_side_(value_side) {}

  __device__ __forceinline__ void run() {
    choose_scales();
    of_owners(scales_.inverse[bytes_[0]], inverse_[0]);
    of_owners(scales_.inverse[bytes_[1]], inverse_[1]);
    write_codes();
    write_scales();
  }

 private:
  // More than what scales can be off by, from the reference's or from here: of sums of 256 squares, each with at most
  // 55 roundings on its way, half a part as scales are roots; of the gain two sums with at most 100 together.
  static constexpr float kScaleMargin = 0x1p-19F, kGainMargin = 0x1p-17F;

  [[nodiscard]] __device__ __forceinline__ LaneValues values(int block) const {
    return tile_.template values<kRotated>(block);
  }
  [[nodiscard]] __device__ __forceinline__ const CodedPackChannel& channel(int block) const {
    return side_.channel[8 * block + static_cast<int>(threadIdx.x) % kLanes / 4];
  }
  [[nodiscard]] __device__ static __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kLanes; }

  /// Adds y^2 / sigma^2 of the blocks [begin, end), and y^2.
  __device__ __forceinline__ void add_squares(int begin, int end, float (&ratios)[kLaneTokens],
                                              float (&squares)[kLaneTokens]) const {
    for (int block = begin; block < end; ++block) {
      const LaneValues y = values(block);
      const float weight = channel(block).inverse_variance;
#pragma unroll
      for (int i = 0; i < kLaneTokens; ++i) {
        const float square = y[i] * y[i];
        ratios[i] = __fmaf_rn(square, weight, ratios[i]);
        squares[i] += square;
      }
    }
  }

  /// The scales that codes are taken with, and the own token's energy.
  __device__ __forceinline__ void choose_scales() {
    float wide[kLaneTokens] = {}, narrow[kLaneTokens] = {}, squares[kLaneTokens] = {};
    add_squares(0, side_.wide, wide, squares);
    add_squares(side_.wide, side_.stored, narrow, squares);
    energy_ = sum_of_own(squares);
    bytes_[0] = class_byte(sum_of_own(wide), 0, side_.wide, side_.wide_count);
    bytes_[1] = class_byte(sum_of_own(narrow), side_.wide, side_.stored, side_.narrow_count);
  }
  __device__ __forceinline__ int class_byte(float sum, int begin, int end, float count) const {
    if (begin == end) return 0;
    const ScaleByte found(scales_, sqrtf(sum / count), kScaleMargin);
    int byte = found.byte;
    for_each_doubtful(found.doubtful, [&](const CodedExactRow<kDim, kRotated>& row, int owner) {
      const int exact = row.class_byte(begin, end);
      if (lane() == owner) byte = exact;
    });
    return byte;
  }
  template <class Visit>
  __device__ __forceinline__ void for_each_doubtful(bool is_doubtful, const Visit& visit) const {
    unsigned owners = __ballot_sync(kQuadLanes, is_doubtful);
#pragma unroll 1
    for (; owners != 0; owners &= owners - 1) {
      const int owner = __ffs(static_cast<int>(owners)) - 1;
      visit(CodedExactRow<kDim, kRotated>(tile_, side_, scales_, token_of(owner)), owner);
    }
  }

  /// Codes of the parts [begin, end), of the class kNarrow: their bits go into words, <y, y^ / scale> into shared_.
  template <int kNarrow>
  __device__ __forceinline__ void add_parts(int begin, int end, float (&words)[kLaneTokens]) {
#pragma unroll 1
    for (int n = begin; n < end; ++n) {
      const CodedPackPart part = side_.part[n];
      const CodedPackChannel own = channel(part.block);
      const LaneValues y = values(part.block);
      const float step = own.step * part.counts;
#pragma unroll
      for (int i = 0; i < kLaneTokens; ++i) {
        // In units of the levels, so that a bound is 0 or 1; factors of two change no rounding.
        const float place = __saturatef(y[i] * own.inverse_step * inverse_[kNarrow][i] + 0.5F);
        const float code = fminf(__fmaf_rd(place, part.levels, kFloorBase), part.limit);
        const float kept = __uint_as_float(__float_as_uint(code) & part.mask) - kFloorBase;
        words[i] = __fmaf_rn(kept, part.factor, words[i]);
        shared_[kNarrow][i] = __fmaf_rn(y[i] * step, code - kFloorBase - part.middle, shared_[kNarrow][i]);
      }
    }
  }

  __device__ __forceinline__ void write_codes() {
    int begin = 0;
#pragma unroll 1
    for (int piece = 0; piece < side_.half + side_.full; ++piece) {
      const int narrow = side_.end[piece][0], end = side_.end[piece][1];
      float words[kLaneTokens];  // kFloorBase + what the lower halves will be
#pragma unroll
      for (float& word : words) word = kFloorBase;
      add_parts<0>(begin, narrow, words);
      add_parts<1>(narrow, end, words);
      begin = end;
      // This lane has string g of eight tokens, and gets strings 2t and 2t + 1 of four.
      unsigned pairs[kLaneTokens / 2];
#pragma unroll
      for (int group = 0; group < kLaneTokens / 2; ++group) {
        pairs[group] =
            transpose8(__byte_perm(__float_as_uint(words[2 * group]), __float_as_uint(words[2 * group + 1]), 0x5410));
      }
      if (piece < side_.half) {
        places_.write_half(side_.half_at, pairs);
      } else {
        places_.write_full(side_.full_at + 16 * (piece - side_.half), pairs);
      }
    }
  }

  __device__ __forceinline__ void write_scales() {
    const float scale[2] = {scales_.scale[bytes_[0]], scales_.scale[bytes_[1]]};
    float dot = sum_of_own(shared_[0]) * scale[0];
    dot += sum_of_own(shared_[1]) * scale[1];
    const bool is_sure = energy_ == 0.0F || (energy_ > 1e-30F && energy_ < 1e30F && dot > 1e-30F);
    const float gain = gain_of(energy_, dot);
    const ScaleByte wide(scales_, scale[0] * gain, kGainMargin), narrow(scales_, scale[1] * gain, kGainMargin);
    int found[2] = {wide.byte, narrow.byte};
    const bool is_doubtful =
        !is_sure || (side_.wide > 0 && wide.doubtful) || (side_.stored > side_.wide && narrow.doubtful);
    for_each_doubtful(is_doubtful, [&](const CodedExactRow<kDim, kRotated>& row, int owner) {
      const float exact =
          row.gain(__shfl_sync(kQuadLanes, bytes_[0], owner), __shfl_sync(kQuadLanes, bytes_[1], owner));
      const int corrected[2] = {row.byte_of(scale[0] * exact), row.byte_of(scale[1] * exact)};
      if (lane() == owner) found[0] = corrected[0], found[1] = corrected[1];
    });
    if (side_.wide == 0) found[0] = 0;
    if (side_.stored == side_.wide) found[1] = 0;
    places_.write_scales(value_side_, found[0], found[1]);
  }

  const CodedTile<kDim>& tile_;
  const CodedPackSide& side_;
  const CodedPackScales& scales_;
  const PagePlaces& places_;
  int value_side_;
  int bytes_[2];  // of the own token: wide, narrow
  float energy_;  // of the own token
  float inverse_[2][kLaneTokens];
  float shared_[2][kLaneTokens] = {};
};

}  // namespace oscar::cuda
