// SPDX-License-Identifier: MIT
// The rotation in oscar_int2_pack(), by tensor cores: fp32 sums, rounded once to bfloat16. On compute capability 9.0
// the four warps of a group multiply their 64 rows at once (wgmma), which reads the matrix a quarter as often;
// elsewhere each warp multiplies its 16.
#pragma once

#include "kernels/cuda/int2_pack_tile.cuh"

namespace oscar::cuda {

/// Begins to copy one head's rotation to shared memory; to(row, j): where the piece of 16 bytes goes that has the
/// columns of the lanes' pair j.
template <int kDim, class To>
__device__ __forceinline__ void copy_rotation(const PackParams& p, int head, const To& to) {
  const unsigned char* const from = moved(p.args.rotation, p.args.rotation_head_stride, head);
  constexpr unsigned kWords = kDim / 2;
  for (unsigned i = threadIdx.x; i < kDim * kWords; i += kPackWarps * kLanes) {
    const unsigned row = i / kWords, pair = i % kWords / 4, t = i % 4;
    const int channel = Layout<kDim>::channel(static_cast<int>(pair), static_cast<int>(t));
    copy_async<4>(to(row, pair) + t * 4, from + 2 * (row * kDim + static_cast<unsigned>(channel)));
  }
  commit_copies();
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/// d (64, 64) += a (64, 16) b (16, 64), asynchronously: warp w of four has rows 16 w to 16 w + 15 of a and d, as mma()
/// has them, d[j] columns 8 j to 8 j + 7. b: descriptor of a matrix in shared memory. Without kAdd, d is overwritten.
template <bool kAdd>
__device__ __forceinline__ void wide_mma(float (*d)[4], const unsigned (&a)[4], std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, add, 1, 1, 1;\n}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
        "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
        "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
        "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdd));
}

/// One head's rotation in shared memory, in panels of 64 columns, swizzled as wgmma reads a matrix whose rows are
/// dense: the 16-byte pieces of a row of 128 bytes change places by the row. Column 8 j + 2 t is the first channel of
/// the lanes' pair j.
template <int kDim>
class SharedRotation {
 public:
  static constexpr unsigned kBytes = 2 * kDim * kDim;

  /// shared: 1024-byte aligned.
  __device__ SharedRotation(const PackParams& p, int head, unsigned shared) {
    copy_rotation<kDim>(p, head, [&](unsigned row, unsigned piece) {
      return shared + piece / 8 * kPanel + row * 128 + (piece ^ row) % 8 * 16;
    });
    constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62, kNextRows = std::uint64_t{1024 / 16} << 32;
    descriptor_ = kSwizzle128 | kNextRows | shared / 16;
  }
  /// Publishes a thread's copies: every thread calls it when its copies are there, before the barrier after which all
  /// use them.
  __device__ static void publish() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

  /// rows = rows R, rounded; by the four warps of a group together.
  __device__ __forceinline__ void apply(const Tile<kDim>& tile, RowPair<kDim>& rows) const {
    unsigned a[kDim / 16][4];
#pragma unroll
    for (unsigned k = 0; k < kDim / 16; ++k) tile.operand(k, a[k]);
#pragma unroll
    for (int panel = 0; panel < kDim / 64; panel += kAtOnce) {
      float out[kAtOnce * 8][4] = {};
      asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const std::uint64_t b = descriptor_ + (panel + n) * (kPanel / 16);
        wide_mma<false>(out + n * 8, a[0], b);
#pragma unroll
        for (unsigned k = 1; k < kDim / 16; ++k) wide_mma<true>(out + n * 8, a[k], b + k * (16 * 128 / 16));
      }
      asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" ::: "memory");
#pragma unroll
      for (int j = 0; j < kAtOnce * 8; ++j) {
#pragma unroll
        for (float& x : out[j]) asm volatile("" : "+f"(x)::"memory");  // not read before
        rows.pairs[0][panel * 8 + j] = pack_bf16(out[j][0], out[j][1]);
        rows.pairs[1][panel * 8 + j] = pack_bf16(out[j][2], out[j][3]);
      }
    }
  }

 private:
  static constexpr int kAtOnce = 1;
  static constexpr unsigned kPanel = kDim * 128;  // bytes

  std::uint64_t descriptor_;  // of the first 16 rows of the first panel
};

#else

/// One head's rotation in shared memory, as the right operand of rows R: rows of 16-byte pieces, of which piece j has
/// the columns that are the lanes' pair j.
template <int kDim>
class SharedRotation {
 public:
  static constexpr unsigned kBytes = 2 * kDim * kDim;

  __device__ SharedRotation(const PackParams& p, int head, unsigned shared) {
    copy_rotation<kDim>(p, head, [&](unsigned row, unsigned piece) { return shared + place<kDim>(row, piece); });
#pragma unroll
    for (unsigned j = 0; j < 8; ++j) pieces_[j] = shared + place<kDim>(threadIdx.x % kLanes, j);
  }

  __device__ static void publish() {}

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

#endif

}  // namespace oscar::cuda
