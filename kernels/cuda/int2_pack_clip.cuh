// SPDX-License-Identifier: MIT
// Clip thresholds of 16 rows for oscar_int2_pack().
#pragma once

#include "kernels/cuda/int2_pack_row.cuh"

namespace oscar::cuda {

/// Numbers from 0 to 255 of one row, eight words of which bit b of every number is in word b.
class BitPlanes {
 public:
  BitPlanes() = default;
  /// words: four numbers each.
  __device__ __forceinline__ explicit BitPlanes(const unsigned (&words)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) planes_[i] = words[i];
    exchange<4>(0x0f0f0f0fU), exchange<2>(0x33333333U), exchange<1>(0x55555555U);
  }
  [[nodiscard]] __device__ __forceinline__ unsigned operator[](int bit) const { return planes_[bit]; }

 private:
  /// Bits of bytes and words change places where their places differ in kStep.
  template <int kStep>
  __device__ __forceinline__ void exchange(unsigned mask) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if ((i & kStep) != 0) continue;
      const unsigned a = planes_[i], b = planes_[i + kStep];
      planes_[i] = (a & mask) | (b << kStep & ~mask);
      planes_[i + kStep] = (a >> kStep & mask) | (b & ~mask);
    }
  }

  unsigned planes_[8];
};

/// The rank-th smallest magnitude of each row, as bits, which are in the order of magnitudes.
template <int kDim>
class Thresholds {
 public:
  /// highest: the largest magnitudes of the rows, as bits.
  __device__ __forceinline__ Thresholds(const unsigned (&highest)[2], int rank)
      : rank_(rank), highest_{static_cast<int>(highest[0]), static_cast<int>(highest[1])} {}

  __device__ __forceinline__ void find(const RowPair<kDim>& rows, unsigned (&thresholds)[2]) const {
    find_near_highest(rows, thresholds);
    if (__any_sync(kQuadLanes, thresholds[0] == 0 || thresholds[1] == 0)) find_anywhere(rows, thresholds);
  }

 private:
  static constexpr int kPairs = Layout<kDim>::kPairs, kSets = (kPairs + 15) / 16;  // of 32 values

  /// 32 values of a row as numbers: 255 for the highest magnitude, 0 for those two octaves below and less.
  __device__ __forceinline__ BitPlanes numbers(const RowPair<kDim>& rows, int r, int set) const {
    const unsigned down = twice(static_cast<unsigned>(255 - highest_[r]) & 0xffffU);
    unsigned words[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      unsigned two[2] = {0, 0};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int pair = 16 * set + 2 * i + n;
        if (pair < kPairs) two[n] = __viaddmax_s16x2(rows.pairs[r][pair] & 0x7fff7fffU, down, 0);
      }
      words[i] = __byte_perm(two[0], two[1], 0x6420);
    }
    return BitPlanes(words);
  }

  /// Finds the threshold in the two octaves below the highest magnitude, where it mostly is; 0 if it is not there. Of
  /// the values that agree in the bits so far, those with the next bit are enough to hold the one looked for, or are
  /// left behind.
  __device__ __forceinline__ void find_near_highest(const RowPair<kDim>& rows, unsigned (&thresholds)[2]) const {
    BitPlanes planes[2][kSets];
    unsigned left[2][kSets], found[2] = {0, 0};
    int wanted[2] = {kDim - rank_, kDim - rank_};  // the how manieth from the top of those that are left
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int set = 0; set < kSets; ++set) planes[r][set] = numbers(rows, r, set), left[r][set] = ~0U;
    }
#pragma unroll
    for (int bit = 7; bit >= 0; --bit) {
      int counts = 0;  // of both rows
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        counts += __popc(left[0][set] & planes[0][set][bit]) + (__popc(left[1][set] & planes[1][set][bit]) << 16);
      }
      counts = over_row(counts, [](int a, int b) { return a + b; });
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int count = r == 0 ? counts & 0xffff : counts >> 16;
        const bool enough = count >= wanted[r];
        const unsigned flip = enough ? 0U : ~0U;
        if (enough) found[r] |= 1U << bit;
        if (!enough) wanted[r] -= count;
#pragma unroll
        for (int set = 0; set < kSets; ++set) left[r][set] &= planes[r][set][bit] ^ flip;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) thresholds[r] = found[r] == 0 ? 0 : static_cast<unsigned>(highest_[r] - 255) + found[r];
  }

  /// The largest number below which at most `rank` magnitudes lie, bit by bit.
  __device__ void find_anywhere(const RowPair<kDim>& rows, unsigned (&thresholds)[2]) const {
    unsigned found[2] = {0, 0};
#pragma unroll 1
    for (unsigned bit = 1U << 14; bit > 0; bit /= 2) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const unsigned limit = found[r] | bit;
        int below = 0;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          below += (rows.pairs[r][i] & 0x7fffU) < limit ? 1 : 0;
          below += (rows.pairs[r][i] >> 16 & 0x7fffU) < limit ? 1 : 0;
        }
        if (over_row(below, [](int a, int b) { return a + b; }) <= rank_) found[r] = limit;
      }
    }
    thresholds[0] = found[0], thresholds[1] = found[1];
  }

  int rank_, highest_[2];
};

}  // namespace oscar::cuda
