// SPDX-License-Identifier: MIT
// How oscar_int2_pack() comes by its rows: copies to shared memory, rotation, and where a row goes.
#pragma once

#include "kernels/cuda/int2_pack_row.cuh"
#include "oscar/int2_attention.h"

namespace oscar::cuda {

inline constexpr int kPackWarps = 8, kLanes = 32;

struct PackParams {
  oscar_int2_pack_args args;
  int clip_rank;           // negative: no clipping
  float lsq_step;          // of the grid where "lsq" starts
  unsigned page_multiple;  // slot / page_size = slot * page_multiple >> page_shift
  int page_shift;
};

/// from + stride * count, of which a stride fits 32 bits; the compiler would multiply 64 by 64.
__device__ __forceinline__ const unsigned char* moved(const void* from, std::int64_t stride, int count) {
  const unsigned char* to;
  asm("mad.wide.s32 %0, %1, %2, %3;\n" : "=l"(to) : "r"(static_cast<int>(stride)), "r"(count), "l"(from));
  return to;
}

/// By what pieces change places in a row: eight rows have a piece in eight different places of 128 bytes, and rows 2 i
/// and 2 i + 1 four pieces in different halves of them, against bank conflicts.
__device__ constexpr unsigned shuffle(unsigned row) { return row % 2 * 4 + row / 2 % 4; }
/// Byte of a 16-byte piece of a row in shared memory.
template <int kDim>
__device__ __forceinline__ constexpr unsigned place(unsigned row, unsigned piece) {
  return row * 2 * kDim + (piece ^ shuffle(row)) * 16;
}

/// Four 8 x 8 matrices of 16-bit elements; lane l names row l % 8 of matrix l / 8.
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(unsigned shared, unsigned (&r)[4]) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
  }
}

/// 16 rows of a warp in shared memory, in pieces of 16 bytes.
template <int kDim>
class Tile {
 public:
  static constexpr int kBytes = kPackRows * 2 * kDim;

  /// shared: 128-byte aligned.
  __device__ Tile(const PackParams& p, int head, unsigned char* shared)
      : p_(p),
        shared_(shared),
        target_(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
        row_(static_cast<int>(threadIdx.x % kLanes / kPieces)) {
    const unsigned piece = threadIdx.x % kLanes % kPieces;
    from_ = moved(p.args.x, p.args.x_head_stride, head) + piece * 16;
    own_ = target_ + place<kDim>(static_cast<unsigned>(row_), piece);
  }

  /// Begins to copy the rows of 16 tokens; of tokens after the last, the last again.
  __device__ __forceinline__ void copy(int first_token) const {
    const int last = p_.args.num_tokens - 1 - first_token;
    const unsigned char* const from = moved(from_, p_.args.x_token_stride, first_token);
#pragma unroll
    for (int i = 0; i < kPackRows; i += kRowsAtOnce) {
      copy_async<16>((own_ ^ shuffle(static_cast<unsigned>(i)) * 16) + i * 2 * kDim,
                     moved(from, p_.args.x_token_stride, min(row_ + i, last)));
    }
    commit_copies();
  }
  /// The rows' channels 16 k to 16 k + 15 as the left operand of a product.
  __device__ __forceinline__ void operand(unsigned k, unsigned (&words)[4]) const {
    const unsigned lane = threadIdx.x % kLanes;
    load_matrices<false>(target_ + place<kDim>(lane % 16, 2 * k + lane / 16), words);
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
  unsigned target_, own_;  // addresses in shared memory: the rows', and that of the lane's own piece of the first rows
  int row_;                // of that piece
};

/// One head's rotation in shared memory, as the right operand of rows R: rows of 16-byte pieces, of which piece j has
/// the columns that are the lanes' pair j.
template <int kDim>
class Rotation {
 public:
  static constexpr unsigned kBytes = 2 * kDim * kDim;

  __device__ Rotation(const PackParams& p, int head, unsigned shared) {
    const unsigned char* const from = moved(p.args.rotation, p.args.rotation_head_stride, head);
    constexpr unsigned kWords = kDim / 2;
    for (unsigned i = threadIdx.x; i < kDim * kWords; i += kPackWarps * kLanes) {
      const unsigned row = i / kWords, pair = i % kWords / 4, t = i % 4;
      const int channel = Layout<kDim>::channel(static_cast<int>(pair), static_cast<int>(t));
      copy_async<4>(shared + place<kDim>(row, pair) + t * 4, from + 2 * (row * kDim + static_cast<unsigned>(channel)));
    }
    commit_copies();
#pragma unroll
    for (unsigned j = 0; j < 8; ++j) pieces_[j] = shared + place<kDim>(threadIdx.x % kLanes, j);
  }

  /// rows = rows R, rounded.
  __device__ __forceinline__ void apply(const Tile<kDim>& tile, RowPair<kDim>& rows) const {
    float out[kDim / 8][4] = {};
#pragma unroll
    for (unsigned c = 0; c < kDim / 32; ++c) {
      unsigned a[2][4];
      tile.operand(2 * c, a[0]), tile.operand(2 * c + 1, a[1]);
#pragma unroll
      for (unsigned j = 0; j < kDim / 8; ++j) {
        unsigned r[4];
        load_matrices<true>(pieces_[j % 8] + c * 64 * kDim + j / 8 * 128, r);
        mma<Half::kBfloat16>(out[j], a[0][0], a[0][1], a[0][2], a[0][3], r[0], r[1]);
        mma<Half::kBfloat16>(out[j], a[1][0], a[1][1], a[1][2], a[1][3], r[2], r[3]);
      }
    }
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      rows.pairs[0][j] = pack_bf16(out[j][0], out[j][1]);
      rows.pairs[1][j] = pack_bf16(out[j][2], out[j][3]);
    }
  }

 private:
  unsigned pieces_[8];  // this lane's: of row `lane` of the first 32
};

/// Where a row goes, if anywhere.
struct Slot {
  int page, token;  // page: negative for nowhere

  __device__ Slot(const PackParams& p, int token_of_call) : page(-1), token(0) {
    const int slot = token_of_call < p.args.num_tokens ? p.args.slots[token_of_call] : -1;
    if (slot < 0) return;
    page = static_cast<int>(static_cast<std::uint64_t>(slot) * p.page_multiple >> p.page_shift);
    token = slot - page * p.args.page_size;
  }
  __device__ __forceinline__ unsigned char* in(const oscar_paged_rows& rows, int head) const {
    const unsigned char* const of_page = moved(moved(rows.data, rows.head_stride, head), rows.page_stride, page);
    return const_cast<unsigned char*>(moved(of_page, rows.token_stride, token));
  }
};

}  // namespace oscar::cuda
