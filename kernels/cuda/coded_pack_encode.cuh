// SPDX-License-Identifier: MIT
// How oscar_coded_pack() encodes rows: scales, codes, and the places of their bits.
#pragma once

#include "kernels/cuda/coded_pack_rows.cuh"
#include "kernels/cuda/coded_pack_table.hpp"

namespace oscar::cuda {

// The scale bytes of a row for oscar_coded_pack(). Sums are taken in any order, with fused operations; where a byte
// could then be another than the reference's, the row is computed again as the reference does (CodedExactRow).

/// The scale byte nearest to `scale`, and whether that could be wrong by a relative error of `margin` of the scale.
struct ScaleByte {
  int byte;
  bool doubtful;

  __device__ __forceinline__ ScaleByte(const CodedPackScales& scales, float scale, float margin) {
    const float place = floorf(16 * fast_log2(scale) + 128.5F);
    byte = static_cast<int>(fminf(fmaxf(place, 0.0F), 255.0F));
    const bool above = byte == 0 || scale * (1 - margin) >= scales.least[byte];
    const bool below = byte == 255 || scale * (1 + margin) < scales.least[byte + 1];
    doubtful = !(above && below && scale < INFINITY);
  }
};

/// Sums over the lanes that share tokens, of the lane's eight tokens: this lane gets that of token_of() it.
__device__ __forceinline__ float sum_of_own(float (&x)[kLaneTokens]) {
  const unsigned g = threadIdx.x % kWarp / 4;
#pragma unroll
  for (int half = 4; half > 0; half /= 2) {
    const bool upper = (g & static_cast<unsigned>(half)) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float sent = upper ? x[i] : x[i + half], kept = upper ? x[i + half] : x[i];
      x[i] = kept + __shfl_xor_sync(kAllLanes, sent, 4 * half);
    }
  }
  return x[0];
}
/// The token whose scales a lane computes.
__device__ __forceinline__ int token_of(int lane) { return lane % 4 * 2 + lane / 4 % 2 + lane / 8 * 8; }
/// What the owners of the lane's tokens have.
__device__ __forceinline__ void of_owners(float own, float (&out)[kLaneTokens]) {
#pragma unroll
  for (int i = 0; i < kLaneTokens; ++i) out[i] = __shfl_sync(kAllLanes, own, 4 * i + threadIdx.x % 4);
}

/// What makes <y, gain y^> = <y, y>, held to 1/2 ... 2.
__device__ __forceinline__ float gain_of(float energy, float shared) {
  if (!(energy > 0.0F)) return 1.0F;
  const float gain = energy / shared;
  if (isnan(gain)) return 1.0F;  // both sums are beyond float32
  return shared > 0.0F ? fminf(fmaxf(gain, 0.5F), 2.0F) : 2.0F;
}

/// The row of one token with the operations and the order of kernels/reference/coded_row.cpp, by a warp.
template <int kDim>
class CodedExactRow {
 public:
  __device__ CodedExactRow(const CodedTile<kDim>& tile, const CodedPackSide& side, const CodedPackScales& scales,
                           int token)
      : tile_(tile), side_(side), scales_(scales), token_(token) {}

  /// The byte of the channels of the blocks [begin, end).
  [[nodiscard]] __device__ int class_byte(int begin, int end) const {
    if (begin == end) return 0;
    const float sum = ordered_sum([&](int i) {
      if (i < 8 * begin || i >= 8 * end) return 0.0F;
      const float ratio = value(i) * side_.channel[i].inverse_sigma;
      return ratio * ratio;
    });
    return byte_of(sqrtf(sum / static_cast<float>(8 * (end - begin))));
  }
  [[nodiscard]] __device__ float gain(int wide_byte, int narrow_byte) const {
    const int stored = 8 * side_.stored;
    const float energy = ordered_sum([&](int i) { return i < stored ? value(i) * value(i) : 0.0F; });
    const float shared = ordered_sum([&](int i) {
      if (i >= stored) return 0.0F;
      const int byte = i < 8 * side_.wide ? wide_byte : narrow_byte;
      const float levels = side_.levels[i / 8];
      const float place = __saturatef(value(i) * side_.channel[i].inverse_step * scales_.inverse[byte] + 0.5F) * levels;
      const float code = fminf(floorf(place), levels - 1);
      return value(i) * ((code - 0.5F * (levels - 1)) * side_.channel[i].step * scales_.scale[byte]);
    });
    return gain_of(energy, shared);
  }
  /// The last byte whose least scale is not above; 0 for what is no number.
  [[nodiscard]] __device__ int byte_of(float scale) const {
    int low = 0;
    for (int step = 128; step > 0; step /= 2) {
      if (scale >= scales_.least[low + step]) low += step;
    }
    return low;
  }

 private:
  [[nodiscard]] __device__ float value(int channel) const { return tile_.value(token_, channel); }

  template <class Term>
  [[nodiscard]] __device__ float ordered_sum(const Term& term) const {
    float sum = 0.0F;
    for (int i = static_cast<int>(threadIdx.x) % kWarp; i < kDim; i += kWarp) sum += term(i);
    for (int half = kWarp / 2; half > 0; half /= 2) sum += __shfl_down_sync(kAllLanes, sum, half);
    return __shfl_sync(kAllLanes, sum, 0);
  }

  const CodedTile<kDim>& tile_;
  const CodedPackSide& side_;
  const CodedPackScales& scales_;
  int token_;
};

// Where oscar_coded_pack() writes.

struct CodedPackParams {
  oscar_coded_pack_args args;
  int page_shift;
  int first_side, sides;  // of the keys (0) and values (1) that are written
};

/// Where the tokens of a tile go: lane (g, t) writes strings 2t and 2t + 1 of tokens g, g + 8, ..., and its own token's
/// scales.
class PagePlaces {
 public:
  /// slot: of token `lane`, negative for none.
  __device__ __forceinline__ PagePlaces(const CodedPackParams& p, const CodedPackSide& side, int slot)
      : page_size_(p.args.page_size) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const unsigned char* const pages = static_cast<unsigned char*>(p.args.pages) + side.first_byte * page_size_;
#pragma unroll
    for (int group = 0; group < kLaneTokens / 2; ++group) {
      const int number = __shfl_sync(kAllLanes, slot, 8 * group + lane / 4);
      is_written_[group] = number >= 0;
      pages_[group] = const_cast<unsigned char*>(moved(pages, p.args.page_stride, max(number, 0) >> p.page_shift));
      entries_[group] = (number & (page_size_ - 1)) * 16 + lane % 4 * 4;
    }
    const int own = __shfl_sync(kAllLanes, slot, token_of(lane));
    own_ = own < 0 ? nullptr
                   : const_cast<unsigned char*>(moved(pages, p.args.page_stride, own >> p.page_shift)) +
                         (side.scales_at * page_size_ + (own & (page_size_ - 1)) * 4);
  }

  /// words: in each half the bytes of one string, of the token of each group; to a plane that begins at byte at *
  /// page_size.
  __device__ __forceinline__ void write_full(int at, const unsigned (&words)[kLaneTokens / 2]) const {
#pragma unroll
    for (int group = 0; group < kLaneTokens / 2; ++group) {
      if (!is_written_[group]) continue;
      *reinterpret_cast<unsigned*>(pages_[group] + (at * page_size_ + entries_[group])) = words[group];
    }
  }
  /// Writes the low bytes of the halves.
  __device__ __forceinline__ void write_half(int at, const unsigned (&words)[kLaneTokens / 2]) const {
#pragma unroll
    for (int group = 0; group < kLaneTokens / 2; ++group) {
      if (!is_written_[group]) continue;
      *reinterpret_cast<unsigned short*>(pages_[group] + (at * page_size_ + entries_[group] / 2)) =
          static_cast<unsigned short>(__byte_perm(words[group], 0, 0x4420));
    }
  }
  __device__ __forceinline__ void write_scales(int value_side, int wide, int narrow) const {
    if (own_ == nullptr) return;
    reinterpret_cast<unsigned short*>(own_)[value_side] = static_cast<unsigned short>(wide | narrow << 8);
  }

 private:
  int page_size_, entries_[kLaneTokens / 2];
  bool is_written_[kLaneTokens / 2];
  unsigned char *pages_[kLaneTokens / 2], *own_;
};

// Codes and scales of 32 rows of a head for oscar_coded_pack(), from shared memory into pages.

/// Encodes and writes the rows of a warp's tile.
template <int kDim>
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

  [[nodiscard]] __device__ __forceinline__ LaneValues values(int block) const { return tile_.values(block); }
  [[nodiscard]] __device__ __forceinline__ const CodedPackChannel& channel(int block) const {
    return side_.channel[8 * block + static_cast<int>(threadIdx.x) % kWarp / 4];
  }
  [[nodiscard]] __device__ static __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

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
    for_each_doubtful(found.doubtful, [&](const CodedExactRow<kDim>& row, int owner) {
      const int exact = row.class_byte(begin, end);
      if (lane() == owner) byte = exact;
    });
    return byte;
  }
  template <class Visit>
  __device__ __forceinline__ void for_each_doubtful(bool is_doubtful, const Visit& visit) const {
    unsigned owners = __ballot_sync(kAllLanes, is_doubtful);
#pragma unroll 1
    for (; owners != 0; owners &= owners - 1) {
      const int owner = __ffs(static_cast<int>(owners)) - 1;
      visit(CodedExactRow<kDim>(tile_, side_, scales_, token_of(owner)), owner);
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
    for_each_doubtful(is_doubtful, [&](const CodedExactRow<kDim>& row, int owner) {
      const float exact = row.gain(__shfl_sync(kAllLanes, bytes_[0], owner), __shfl_sync(kAllLanes, bytes_[1], owner));
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
