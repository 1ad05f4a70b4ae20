// SPDX-License-Identifier: MIT
// oscar_coded_unpack(): y = s (c - (2^w - 1) / 2) step in float32, rounded to bfloat16. Reads the table that
// oscar_coded_pack() writes by. A thread has the same block of channels in all its rows: one code of each string.
#include <cuda_runtime.h>

#include <bit>

#include "kernels/cuda/coded_pack_table.hpp"
#include "kernels/cuda/unpack_rows.cuh"

namespace oscar::cuda {
namespace {

struct CodedUnpackParams {
  oscar_coded_unpack_args args;
  int page_shift;
  int first_side;  // of the keys (0) and values (1) that are read
};

/// Bits of a block's codes in one byte of each string.
struct CodedBits {
  int at;          // bytes of a token before their plane, from the head's on
  bool half;       // whether the plane has pieces of 8 bytes
  unsigned shift;  // in the strings' 16-bit words, or in the bytes of a piece of 8
  unsigned mask;   // of a pair of strings
  int code_bit;
};

inline constexpr int kMostBits = 8;  // parts of a block: each has a bit at least

/// A block's shared memory.
struct CodedUnpackPlaces {
  float scale[256];
  CodedBits bits[32][kMostBits];  // of blocks
  int count[32];
};

/// By one thread a block of channels.
__device__ __forceinline__ void find_bits(const CodedPackSide& side, int block, CodedUnpackPlaces& places) {
  int count = 0, part = 0;
  for (int piece = 0; piece < side.half + side.full; ++piece) {
    for (; part < side.end[piece][1]; ++part) {
      const CodedPackPart its = side.part[part];
      if (its.block != block) continue;
      const unsigned kept = its.mask & 0x00ffffffU;  // width bits from code_bit on
      const int code_bit = __ffs(static_cast<int>(kept)) - 1;
      const int word_bit = code_bit + (static_cast<int>(__float_as_uint(its.factor) >> 23) - 127);
      const bool half = piece < side.half;
      places.bits[block][count++] = {half ? side.half_at : side.full_at + 16 * (piece - side.half), half,
                                     static_cast<unsigned>(word_bit), 0x00010001U * (kept >> code_bit), code_bit};
    }
  }
  places.count[block] = count;
}

/// codes[i] gets bits of strings 2i (low half) and 2i + 1. head: where its planes begin, for one token; token: in its
/// page.
__device__ __forceinline__ void add_codes(const unsigned char* head, const CodedBits& bits, int page_size, int token,
                                          unsigned (&codes)[4]) {
  const unsigned char* const plane = head + bits.at * page_size;
  uint4 words;
  if (bits.half) {
    const uint2 bytes = reinterpret_cast<const uint2*>(plane)[token];
    words = make_uint4(__byte_perm(bytes.x, 0, 0x4140), __byte_perm(bytes.x, 0, 0x4342),
                       __byte_perm(bytes.y, 0, 0x4140), __byte_perm(bytes.y, 0, 0x4342));
  } else {
    words = reinterpret_cast<const uint4*>(plane)[token];
  }
  codes[0] |= (words.x >> bits.shift & bits.mask) << bits.code_bit;
  codes[1] |= (words.y >> bits.shift & bits.mask) << bits.code_bit;
  codes[2] |= (words.z >> bits.shift & bits.mask) << bits.code_bit;
  codes[3] |= (words.w >> bits.shift & bits.mask) << bits.code_bit;
}

/// Grid: (any number, sides * num_kv_heads).
template <int kDim>
__global__ void __launch_bounds__(kUnpackThreads, 4) coded_unpack(const __grid_constant__ CodedUnpackParams p) {
  using Tile = UnpackTile<kDim>;
  __shared__ CodedUnpackPlaces shared;
  const int heads = p.args.num_kv_heads, which = static_cast<int>(blockIdx.y), block = Tile::block();
  const int value_side = p.first_side + which / heads, head = which % heads, page_size = p.args.page_size;
  const oscar_bf16_rows& to = value_side == 0 ? p.args.k : p.args.v;
  const auto* const table = static_cast<const CodedPackTable*>(p.args.table);
  const CodedPackSide& side = table->side[value_side * heads + head];
  follow_previous_launch();
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += kUnpackThreads) shared.scale[i] = table->scales.scale[i];
  if (threadIdx.x < Tile::kLanes) find_bits(side, block, shared);
  float step[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) step[j] = side.channel[8 * block + j].step;
  const float middle = 0.5F * (side.levels[block] - 1);
  const unsigned char* const pages = static_cast<const unsigned char*>(p.args.pages) + side.first_byte * page_size;
  const int scales_at = side.scales_at * page_size + 2 * value_side + (block < side.wide ? 0 : 1);
  __syncthreads();
  const int count = shared.count[block];
  const CodedBits bits = count > 0 ? shared.bits[block][0] : CodedBits{};
  for (int first = static_cast<int>(blockIdx.x) * Tile::kTokens; first < p.args.num_tokens;
       first += static_cast<int>(gridDim.x) * Tile::kTokens) {
    int slots[kUnpackRows];
    Tile::slots_of(p.args.slots, first, p.args.num_tokens, slots);
    unsigned codes[kUnpackRows][4] = {};
    int scales[kUnpackRows] = {};
#pragma unroll
    for (int i = 0; i < kUnpackRows; ++i) {
      if (slots[i] < 0 || count == 0) continue;
      const unsigned char* const page = pages + (slots[i] >> p.page_shift) * p.args.page_stride;
      const int token = slots[i] & (page_size - 1);
      add_codes(page, bits, page_size, token, codes[i]);
      for (int k = 1; k < count; ++k) add_codes(page, shared.bits[block][k], page_size, token, codes[i]);
      scales[i] = page[scales_at + 4 * token];
    }
#pragma unroll
    for (int i = 0; i < kUnpackRows; ++i) {
      if (slots[i] < 0) continue;
      const float scale = shared.scale[scales[i]];
      float values[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const unsigned number = __byte_perm(codes[i][j / 2], kWholeNumber, j % 2 == 0 ? 0x7610 : 0x7632);
        values[j] = (__uint_as_float(number) - kWholeBase - middle) * step[j] * scale;
      }
      store_row<kDim>(to, Tile::token(first, i), head, values);
    }
  }
}

template <int kDim>
int launch(const CodedUnpackParams& p, cudaStream_t stream) {
  const int parts = p.args.num_kv_heads * (p.args.k.data != nullptr && p.args.v.data != nullptr ? 2 : 1);
  const dim3 grid(unpack_blocks<kDim>(p.args.num_tokens, parts), static_cast<unsigned>(parts));
  return launch_overlapping<coded_unpack<kDim>>(p, grid, kUnpackThreads, 0, 0, stream);
}

const char* problem(const oscar_coded_unpack_args& a) {
  if (a.num_tokens < 0 || a.num_kv_heads < 1 || a.num_kv_heads > 32767) {
    return "num_tokens or num_kv_heads is out of range";
  }
  if (const char* wrong = shape_problem(a.head_dim, a.head_dim, OSCAR_FLOAT32)) return wrong;
  if (const char* wrong = coded_pages_problem(a.table, a.page_size, a.pages, a.page_stride, a.token_bytes))
    return wrong;
  if (a.slots == nullptr) return "slots must not be null";
  if (a.k.data == nullptr && a.v.data == nullptr) return "there is room neither for keys nor for values";
  for (const oscar_bf16_rows* rows : {&a.k, &a.v}) {
    if (const char* wrong = rows_problem({rows->data, 0, rows->token_stride, rows->head_stride}, 16)) return wrong;
  }
  return nullptr;
}

}  // namespace
}  // namespace oscar::cuda

using namespace oscar::cuda;

extern "C" __attribute__((visibility("default"))) int oscar_coded_unpack(const oscar_coded_unpack_args* args,
                                                                         void* stream) {
  if (const char* wrong = args == nullptr ? "no arguments" : problem(*args); wrong != nullptr) return refuse(wrong);
  if (args->num_tokens == 0) return cudaSuccess;
  const CodedUnpackParams p{*args, std::countr_zero(static_cast<unsigned>(args->page_size)),
                            args->k.data != nullptr ? 0 : 1};
  const auto on = static_cast<cudaStream_t>(stream);
  switch (args->head_dim) {
    case 64:
      return launch<64>(p, on);
    case 128:
      return launch<128>(p, on);
    default:
      return launch<256>(p, on);
  }
}
