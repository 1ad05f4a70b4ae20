// SPDX-License-Identifier: MIT
// Where oscar_coded_pack() writes.
#pragma once

#include "kernels/cuda/coded_pack_scales.cuh"

namespace oscar::cuda {

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
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const unsigned char* const pages = static_cast<unsigned char*>(p.args.pages) + side.first_byte * page_size_;
#pragma unroll
    for (int group = 0; group < kLaneTokens / 2; ++group) {
      const int number = __shfl_sync(kQuadLanes, slot, 8 * group + lane / 4);
      is_written_[group] = number >= 0;
      pages_[group] = const_cast<unsigned char*>(moved(pages, p.args.page_stride, max(number, 0) >> p.page_shift));
      entries_[group] = (number & (page_size_ - 1)) * 16 + lane % 4 * 4;
    }
    const int own = __shfl_sync(kQuadLanes, slot, token_of(lane));
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

}  // namespace oscar::cuda
