// SPDX-License-Identifier: MIT
// How oscar_int2_pack() comes by 16 rows of a head, in shared memory and in a warp's registers, and encodes them.
#pragma once

#include <cmath>

#include "kernels/cuda/int2_mma.cuh"
#include "oscar/int2_attention.h"

namespace oscar::cuda {

// What oscar_int2_pack() does with 16 rows of a head in a warp's registers: their layout, min/max grids, codes.
// Lane (g, t) = (l / 4, l % 4) has the same channels of row g and of row g + 8: see Layout. Sums over a row are taken
// by the tensor cores: rows as the left operand, and ones, or rows again, as the right one.

inline constexpr int kPackRows = 16;
inline constexpr unsigned kQuadLanes = 0xffffffffU;

/// Which channels a lane has, in pairs: of every quarter of the row kHalves times kRun in a row. Their codes are kRun
/// bytes in a row.
template <int kDim>
struct Layout {
  static constexpr int kPairs = kDim / 8;  // of a row in a lane
  static constexpr int kRun = kDim == 64 ? 4 : 8, kHalves = kDim == 256 ? 2 : 1;
  static constexpr int kBytePairs = kHalves * kRun / 2;  // of packed bytes

  __host__ __device__ static constexpr int quarter(int pair) { return pair / kBytePairs; }
  /// First channel of a pair of lane t.
  __host__ __device__ static constexpr int channel(int pair, int t) {
    const int place = pair % kBytePairs;
    return quarter(pair) * (kDim / 4) + place / (kRun / 2) * 32 + t * kRun + place % (kRun / 2) * 2;
  }
};

/// Pairs of bfloat16 of row g and of row g + 8.
template <int kDim>
struct RowPair {
  unsigned pairs[2][Layout<kDim>::kPairs];
};

__device__ __forceinline__ __nv_bfloat162 as_bf162(unsigned bits) { return *reinterpret_cast<__nv_bfloat162*>(&bits); }
__device__ __forceinline__ unsigned bits_of(__nv_bfloat162 x) { return *reinterpret_cast<unsigned*>(&x); }
/// Both halves.
__device__ __forceinline__ unsigned twice(unsigned half) { return half | half << 16; }
__device__ __forceinline__ float float_of(unsigned half) { return __uint_as_float(half << 16); }

/// The upper half is the least bfloat16 that is not less than x.
__device__ __forceinline__ unsigned raised_to_bf16(float x) {
  const unsigned bits = __float_as_uint(x);
  return bits + (bits >> 31 == 0 ? 0xffffU : 0U);
}

/// Combined over the four lanes of a row.
template <class T, class Combine>
__device__ __forceinline__ T over_row(T x, const Combine& combine) {
  x = combine(x, __shfl_xor_sync(kQuadLanes, x, 1));
  return combine(x, __shfl_xor_sync(kQuadLanes, x, 2));
}

/// A pair of 1.
constexpr unsigned kOnes = 0x3f803f80U;

/// A group's grid, as it is stored.
struct GroupGrid {
  float scale, zero;
};

/// The codes of a pair, from 0 to 3: how many of the least values (bfloat16, twice) for codes 1, 2 and 3 are reached.
__device__ __forceinline__ __nv_bfloat162 codes_of(unsigned pair, const unsigned (&least)[3]) {
  const auto reaches = [&](int i) { return __hge2(as_bf162(pair), as_bf162(least[i])); };
  return __hadd2(__hadd2(reaches(0), reaches(1)), reaches(2));
}

/// The least bfloat16 x for which x / scale + zero + 0.5, each operation rounded to float32, reaches `code`; infinity
/// if that is above `most`. Sums are rounded to `code` or more from the middle below on, which float64 holds exactly;
/// the rounding of the quotient can move x by less than a bfloat16, so that one trial decides.
__device__ __forceinline__ unsigned least_value(float scale, float zero, int code, float most) {
  constexpr unsigned kInfinity = 0x7f80U;
  // 0.5 - 2^-25 + 0.5 is a tie that goes up to 1; 1.5 and 2.5 are exact.
  const double sum = code == 1 ? 0.5 - 1.5 * 0x1p-25 : code == 2 ? 1.5 - 0x1p-24 : 2.5 - 0x1p-23;
  const float x = __double2float_rd((sum - static_cast<double>(zero)) * static_cast<double>(scale));
  unsigned least = raised_to_bf16(x - fabsf(x) * 0x1p-22F) >> 16;
  if (!(float_of(least) / scale + zero + 0.5F >= static_cast<float>(code))) least += least >> 15 == 0 ? 1U : ~0U;
  // A zero that is not finite comes from equal huge values, whose codes are 0.
  return float_of(least) <= most && fabsf(zero) < INFINITY ? least : kInfinity;
}

/// A smallest value of zero with the sign of the first zero in the order of channels: it shows in the stored zero.
template <int kDim, int kGroups>
__device__ __forceinline__ float first_zero(const RowPair<kDim>& rows, int r, int group, bool all_are_zeros) {
  constexpr int kPairs = Layout<kDim>::kPairs / kGroups;
  unsigned first = ~0U;  // 2 * channel + sign
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const unsigned pair = rows.pairs[r][group * kPairs + i];
    const auto channel = static_cast<unsigned>(Layout<kDim>::channel(group * kPairs + i, t));
    if (all_are_zeros || (pair & 0x7fffU) == 0) first = min(first, 2 * channel + (pair >> 15 & 1U));
    if (all_are_zeros || (pair & 0x7fff0000U) == 0) first = min(first, 2 * channel + 2 + (pair >> 31));
  }
  first = over_row(first, [](unsigned a, unsigned b) { return min(a, b); });
  return first % 2 == 1 ? -0.0F : 0.0F;
}

/// The smallest value of every group of both rows and, negated, the largest, as pairs in all lanes of a row.
template <int kDim, int kGroups>
struct Ends {
  unsigned pairs[2][kGroups];

  __device__ __forceinline__ explicit Ends(const RowPair<kDim>& rows) {
    constexpr int kPairs = Layout<kDim>::kPairs / kGroups;
    const auto smaller = [](unsigned a, unsigned b) { return bits_of(__hmin2(as_bf162(a), as_bf162(b))); };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const unsigned* const own = rows.pairs[r] + group * kPairs;
        __nv_bfloat162 low = as_bf162(own[0]), high = low;
#pragma unroll
        for (int i = 1; i < kPairs; ++i) low = __hmin2(low, as_bf162(own[i])), high = __hmax2(high, as_bf162(own[i]));
        high = __hneg2(high);
        pairs[r][group] =
            over_row(smaller(bits_of(__lows2bfloat162(low, high)), bits_of(__highs2bfloat162(low, high))), smaller);
      }
    }
  }

  [[nodiscard]] __device__ float low(int r, int group) const { return low_bf16(pairs[r][group]); }
  [[nodiscard]] __device__ float high(int r, int group) const { return -high_bf16(pairs[r][group]); }
  /// Largest magnitudes of the rows, as bits.
  __device__ __forceinline__ void highest(unsigned (&bits)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = 0;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) most = fmaxf(most, fmaxf(high(r, group), -low(r, group)));
      bits[r] = __float_as_uint(most) >> 16;
    }
  }
};

/// The codes of a lane's channels of one row, as they are packed.
template <int kDim>
class PackedCodes {
  using L = Layout<kDim>;

 public:
  __device__ __forceinline__ PackedCodes() {
    for (auto& half : halves_) {
      for (__nv_bfloat162& pair : half) pair = __float2bfloat162_rn(128);
    }
  }

  /// The codes of a pair of channels. Sums of codes times 1 or 4, from 128 to 143, are exact.
  __device__ __forceinline__ void add(int pair, __nv_bfloat162 codes) {
    const int quarter = L::quarter(pair);
    __nv_bfloat162& to = halves_[quarter / 2][pair % L::kBytePairs];
    to = __hfma2(codes, __float2bfloat162_rn(quarter % 2 == 0 ? 1.0F : 4.0F), to);
  }

  __device__ __forceinline__ void store(unsigned char* row) const {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int half = 0; half < L::kHalves; ++half) {
      unsigned char* const to = row + 32 * half + t * L::kRun;
      if constexpr (L::kRun == 8) {
        *reinterpret_cast<uint2*>(to) = {four(half * 4), four(half * 4 + 2)};
      } else {
        *reinterpret_cast<unsigned*>(to) = four(0);
      }
    }
  }

 private:
  /// Bytes of two pairs from the i-th on.
  [[nodiscard]] __device__ __forceinline__ unsigned four(int i) const {
    return __byte_perm(two(i), two(i + 1), 0x6420);
  }
  [[nodiscard]] __device__ __forceinline__ unsigned two(int i) const {
    return (bits_of(halves_[0][i]) & 0x000f000fU) | (bits_of(halves_[1][i]) & 0x000f000fU) << 4;
  }

  __nv_bfloat162 halves_[2][L::kBytePairs];  // 128 + the lower four bits of a byte, 128 + the upper
};

/// The min/max grid of one group of both rows, which are clamped to +-thresholds (bits; infinity: not at all), and
/// their codes. Lanes 0 and 1 of a quad compute for row g, lanes 2 and 3 for row g + 8: `grid` is of that row.
template <int kDim, int kGroups>
__device__ __forceinline__ void encode_min_max(const RowPair<kDim>& rows, const Ends<kDim, kGroups>& ends, int group,
                                               const unsigned (&thresholds)[2], GroupGrid& grid,
                                               PackedCodes<kDim> (&codes)[2]) {
  constexpr int kPairs = Layout<kDim>::kPairs / kGroups;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const float threshold = float_of(t < 2 ? thresholds[0] : thresholds[1]);
  const unsigned own_ends = t < 2 ? ends.pairs[0][group] : ends.pairs[1][group];
  const float high = fminf(fmaxf(-high_bf16(own_ends), -threshold), threshold);
  float low = fminf(fmaxf(low_bf16(own_ends), -threshold), threshold);
  if (__any_sync(kQuadLanes, low == 0)) {
    const float zeros[2] = {first_zero<kDim, kGroups>(rows, 0, group, float_of(thresholds[0]) == 0),
                            first_zero<kDim, kGroups>(rows, 1, group, float_of(thresholds[1]) == 0)};
    if (low == 0) low = t < 2 ? zeros[0] : zeros[1];
  }
  grid.scale = fmaxf(high - low, 1e-8F) / 3.0F, grid.zero = -low / grid.scale;
  const unsigned first = least_value(grid.scale, grid.zero, t % 2 + 1, threshold);
  const unsigned third = least_value(grid.scale, grid.zero, 3, threshold);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const unsigned least[3] = {twice(__shfl_sync(kQuadLanes, first, 2 * r, 4)),
                               twice(__shfl_sync(kQuadLanes, first, 2 * r + 1, 4)),
                               twice(__shfl_sync(kQuadLanes, third, 2 * r, 4))};
#pragma unroll
    for (int i = group * kPairs; i < (group + 1) * kPairs; ++i) codes[r].add(i, codes_of(rows.pairs[r][i], least));
  }
}

// How oscar_int2_pack() comes by its rows, by copies to shared memory, and where a row goes.

inline constexpr int kPackWarps = 8, kLanes = 32;
inline constexpr int kGroupWarps = 4;  // that wgmma takes together

struct PackParams {
  oscar_int2_pack_args args;
  int clip_rank;  // negative: no clipping
  FastDivide page_size;
};

/// from + stride * count, of which a stride fits 32 bits; the compiler would multiply 64 by 64.
__device__ __forceinline__ const unsigned char* moved(const void* from, std::int64_t stride, int count) {
  const unsigned char* to;
  asm("mad.wide.s32 %0, %1, %2, %3;\n" : "=l"(to) : "r"(static_cast<int>(stride)), "r"(count), "l"(from));
  return to;
}

/// Returns by what the pieces of a row change places: eight rows have a piece in eight different places of 128 bytes,
/// and rows 2 i and 2 i + 1 four pieces in different halves of them, against bank conflicts.
__device__ constexpr unsigned shuffle(unsigned row) { return row % 2 * 4 + row / 2 % 4; }
/// Byte of a 16-byte piece of a row in shared memory.
template <int kDim>
__device__ __forceinline__ constexpr unsigned place(unsigned row, unsigned piece) {
  return row * 2 * kDim + (piece ^ shuffle(row)) * 16;
}

/// 16 rows of a warp in shared memory, in pieces of 16 bytes.
template <int kDim>
class Tile {
 public:
  static constexpr int kBytes = kPackRows * 2 * kDim;

  /// Lays a tile out in shared memory. shared: kBytes, aligned as a row. slots: kPackRows.
  __device__ Tile(const PackParams& p, int head, unsigned char* shared, int* slots)
      : p_(p),
        shared_(shared),
        slots_(slots),
        target_(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
        row_(static_cast<int>(threadIdx.x % kLanes / kPieces)) {
    const unsigned piece = threadIdx.x % kLanes % kPieces;
    from_ = moved(p.args.x, p.args.x_head_stride, head) + piece * 16;
    own_ = target_ + place<kDim>(static_cast<unsigned>(row_), piece);
    operand_ = target_ + place<kDim>(threadIdx.x % kLanes % 16, threadIdx.x % kLanes / 16);
  }

  /// Begins to copy the rows of 16 tokens and their slots; of tokens after the last, the last again.
  __device__ __forceinline__ void copy(int first_token) const {
    const int last = p_.args.num_tokens - 1 - first_token;
    const unsigned char* const from = moved(from_, p_.args.x_token_stride, first_token);
#pragma unroll
    for (int i = 0; i < kPackRows; i += kRowsAtOnce) {
      copy_async<16>((own_ ^ shuffle(static_cast<unsigned>(i)) * 16) + i * 2 * kDim,
                     moved(from, p_.args.x_token_stride, min(row_ + i, last)));
    }
    if (const int lane = static_cast<int>(threadIdx.x) % kLanes; lane < kPackRows) {
      copy_async<4>(static_cast<unsigned>(__cvta_generic_to_shared(slots_ + lane)),
                    p_.args.slots + first_token + min(lane, last));
    }
    commit_copies();
  }
  /// The rows' channels 16 k to 16 k + 15 as the left operand of a product.
  __device__ __forceinline__ void operand(unsigned k, unsigned (&words)[4]) const {
    unsigned first = operand_;
    asm volatile("" : "+r"(first));  // the addresses of all k would not fit the registers between two tiles
    load_matrices<false>(first ^ 32 * k, words);
  }
  /// The slot of row g or of row g + 8; negative for none.
  [[nodiscard]] __device__ __forceinline__ int slot(int r, int first_token) const {
    const int row = static_cast<int>(threadIdx.x) % kLanes / 4 + 8 * r;
    return first_token + row < p_.args.num_tokens ? slots_[row] : -1;
  }
  /// Rows that need no rotation.
  __device__ __forceinline__ void load(RowPair<kDim>& rows) const {
    using L = Layout<kDim>;
    const unsigned g = threadIdx.x % kLanes / 4, t = threadIdx.x % 4;
#pragma unroll
    for (unsigned r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < L::kPairs; i += L::kRun / 2) {
        const auto channel = static_cast<unsigned>(L::channel(i, static_cast<int>(t)));
        if constexpr (L::kRun == 8) {
          const uint4 x = *reinterpret_cast<const uint4*>(shared_ + place<kDim>(g + 8 * r, channel / 8));
          rows.pairs[r][i] = x.x, rows.pairs[r][i + 1] = x.y, rows.pairs[r][i + 2] = x.z, rows.pairs[r][i + 3] = x.w;
        } else {
          const auto* const at = shared_ + place<kDim>(g + 8 * r, channel / 8) + channel % 8 * 2;
          const uint2 x = *reinterpret_cast<const uint2*>(at);
          rows.pairs[r][i] = x.x, rows.pairs[r][i + 1] = x.y;
        }
      }
    }
  }

 private:
  static constexpr unsigned kPieces = kDim / 8;  // of a row

  static constexpr int kRowsAtOnce = kLanes / static_cast<int>(kPieces);

  const PackParams& p_;
  const unsigned char *from_, *shared_;
  int* slots_;
  // Addresses in shared memory: the rows', those of the lane's own piece of the first rows and of its first operand.
  unsigned target_, own_, operand_;
  int row_;  // of its own piece
};

/// Where a row goes, if anywhere.
struct Slot {
  int page, token;  // page: negative for nowhere

  __device__ Slot(const PackParams& p, int number) : page(-1), token(0) {
    if (number < 0) return;
    page = p.page_size.quotient(number);
    token = number - page * p.args.page_size;
  }
  __device__ __forceinline__ unsigned char* in(const oscar_paged_rows& rows, int head) const {
    const unsigned char* const of_page = moved(moved(rows.data, rows.head_stride, head), rows.page_stride, page);
    return const_cast<unsigned char*>(moved(of_page, rows.token_stride, token));
  }
};

}  // namespace oscar::cuda
