// SPDX-License-Identifier: MIT
// How oscar_int2_pack() comes by its rows, by copies to shared memory, and where a row goes.
#pragma once

#include "kernels/cuda/fast_divide.cuh"
#include "kernels/cuda/int2_pack_row.cuh"
#include "oscar/int2_attention.h"

namespace oscar::cuda {

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
