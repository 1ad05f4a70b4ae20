// SPDX-License-Identifier: MIT
// Tensor core products, copies to shared memory and conversions of packed codes, for the kernels of servers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <concepts>
#include <cstdint>

namespace oscar::cuda {

// Division of many numbers by one that kernels are given: a multiplication and a shift.

/// Exact for numbers from 0 to below 2^31.
struct FastDivide {
  unsigned multiple = 0;
  int shift = 0;

  FastDivide() = default;
  /// by: positive.
  explicit FastDivide(int by) : shift(31 + std::bit_width(static_cast<unsigned>(by) - 1)) {
    const auto divisor = static_cast<std::uint64_t>(by);
    multiple = static_cast<unsigned>(((std::uint64_t{1} << shift) + divisor - 1) / divisor);
  }
  [[nodiscard]] __device__ __forceinline__ int quotient(int number) const {
    return static_cast<int>(static_cast<std::uint64_t>(number) * multiple >> shift);
  }
};

// What the INT2 decode kernel does with a warp's registers: matrix products, codes to operands, transposes.
//
// As keys, codes are bytes of an integer product: four at a time by one mask, of which the other two bits of a nibble
// only make the factor 4. As values, codes become float16 without arithmetic: a float16 whose exponent bits are 0 is
// its ten mantissa bits in units of 2^-24 (a subnormal, which the tensor cores take at full speed), so word & mask is
// the pair f * code * 2^-24 with f = 1, 4, 16, 64 or 256 by the bits that the mask lets through. The caller divides the
// other factor by f, which is exact.

/// The factor on the code of pair c of unpack_codes(), besides 2^-24.
__host__ __device__ constexpr float code_factor(int c) { return static_cast<float>(1 << 2 * (c < 5 ? c : c - 5)); }

/// Each half word of `word` holds eight codes; pairs[c] = the c-th codes of both.
__device__ __forceinline__ void unpack_codes(unsigned word, unsigned (&pairs)[8]) {
  const unsigned by10 = word >> 10;
#pragma unroll
  for (int c = 0; c < 8; ++c) pairs[c] = c < 5 ? word & 0x00030003U << 2 * c : by10 & 0x00030003U << 2 * (c - 5);
}

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

/// c (16, 8) += a (16, 32) b (32, 8), a unsigned and b signed bytes. With g = lane / 4 and t = lane % 4:
/// a: rows g and g + 8 of columns 4t to 4t+3, then of columns 4t+16 to 4t+19; b: rows 4t to 4t+3, then 4t+16 to 4t+19
/// of column g; c: as above.
__device__ __forceinline__ void mma_bytes(int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                          unsigned b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
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

}  // namespace oscar::cuda
