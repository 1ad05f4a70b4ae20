// SPDX-License-Identifier: MIT
// Tensor core products, copies to shared memory and where rows lie there.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <concepts>
#include <cstdint>

namespace oscar::cuda {

/// Elements of a matrix product.
enum class Half { kFloat16, kBfloat16 };

/// c (16, 8) += a (16, 16) b (16, 8). With g = lane / 4 and t = lane % 4:
/// a: rows g and g + 8 of columns 2t, 2t+1, then of columns 2t+8, 2t+9; b: rows 2t, 2t+1, then 2t+8, 2t+9 of column g;
/// c: columns 2t, 2t+1 of row g, then of row g + 8.
template <Half kType>
__device__ __forceinline__ void mma(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                    unsigned b1) {
  if constexpr (kType == Half::kFloat16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

/// c (16, 8) += a (16, 32) b (32, 8), a unsigned bytes and b signed or unsigned ones. With g = lane / 4 and t = lane %
/// 4: a: rows g and g + 8 of columns 4t to 4t+3, then of columns 4t+16 to 4t+19; b: rows 4t to 4t+3, then 4t+16 to
/// 4t+19 of column g; c: as above.
template <bool kSigned>
__device__ __forceinline__ void mma_bytes(int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                          unsigned b1) {
  if constexpr (kSigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
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

/// Transposes an 8 x 8 matrix of 16-bit elements: lane (g, t) gives columns 2t, 2t+1 of row g, and gets rows 2t, 2t+1
/// of column g.
__device__ __forceinline__ unsigned transpose8(unsigned pair) {
  unsigned out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(out) : "r"(pair));
  return out;
}

/// Pairs, `low` in the low half.
__device__ __forceinline__ unsigned pack_f16(float low, float high) {
  unsigned out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  unsigned out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
__device__ __forceinline__ float low_bf16(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(unsigned pair) { return __uint_as_float(pair & 0xffff0000U); }

__device__ __forceinline__ float fast_log2(float x) {
  float out;
  asm("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(out) : "f"(x));
  return out;
}
__device__ __forceinline__ float fast_exp2(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(out) : "f"(x));
  return out;
}
inline constexpr float kLog2E = 1.4426950408889634F;

/// cap tanh(x / cap) for x and cap in units of 1 / log2(e), off by 2^-21 cap. tanh.approx would be off by 2^-11 of it.
__device__ __forceinline__ float soft_capped(float x, float cap) {
  return cap - __fdividef(2 * cap, 1 + fast_exp2(x * (2 * kLog2E / cap)));
}

/// Returns the value itself, which the compiler then keeps in a register instead of computing it again wherever it is
/// used.
template <class T>
__device__ __forceinline__ T* kept(T* pointer) {
  asm("" : "+l"(pointer));
  return pointer;
}

template <std::integral T>
__device__ __forceinline__ T kept(T value) {
  static_assert(sizeof(T) == 4);
  asm("" : "+r"(value));
  return value;
}

/// `target`: an address in shared memory.
template <int kBytes>
__device__ __forceinline__ void copy_async(unsigned target, const void* global) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(target), "l"(global));
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;\n" ::"r"(target), "l"(global), "n"(kBytes));
  }
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n"); }
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending));
}

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

}  // namespace oscar::cuda
