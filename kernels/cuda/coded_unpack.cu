// SPDX-License-Identifier: MIT
// oscar_coded_unpack(): packed rows become bfloat16 rows, y = s (c - (2^w - 1) / 2) step in float32, rounded to
// bfloat16. It reads the table that oscar_coded_pack() writes by.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/coded_pack_table.hpp"
#include "kernels/cuda/coded_turn.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/server_arguments.hpp"

namespace oscar::cuda {

// What the kernels that turn packed rows into bfloat16 rows have in common. A thread has eight neighbouring channels of
// a row, 16 bytes of what is written; the threads of a block take the same channels of kRows rows at a time.

inline constexpr int kUnpackThreads = 256, kUnpackRows = 4;  // rows that a thread has on their way at once
inline constexpr unsigned kWholeNumber = 0x4b000000;  // with a whole number below 2^23 in its low bits: 2^23 + number
inline constexpr float kWholeBase = 8388608.0F;       // 2^23

template <int kDim>
struct UnpackTile {
  static constexpr int kLanes = kDim / 8;                // of a row
  static constexpr int kRows = kUnpackThreads / kLanes;  // at a time
  static constexpr int kTokens = kRows * kUnpackRows;    // of a block

  /// The thread's channels [8 block(), 8 block() + 8).
  [[nodiscard]] __device__ static int block() { return static_cast<int>(threadIdx.x) % kLanes; }
  /// Token `i` of the thread's kUnpackRows tokens of the tile that begins at `first`.
  [[nodiscard]] __device__ static int token(int first, int i) {
    return first + i * kRows + static_cast<int>(threadIdx.x) / kLanes;
  }
  /// Their slots; negative ones are not to be read.
  __device__ static void slots_of(const std::int32_t* slots, int first, int num_tokens, int (&found)[kUnpackRows]) {
#pragma unroll
    for (int i = 0; i < kUnpackRows; ++i) found[i] = token(first, i) < num_tokens ? slots[token(first, i)] : -1;
  }
};

/// Eight channels of a row as bfloat16.
__device__ __forceinline__ uint4 rounded(const float (&values)[8]) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
    words[i] = reinterpret_cast<const unsigned&>(pair);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}
/// Writes the thread's channels of a row of `to`.
template <int kDim>
__device__ __forceinline__ void store_row(const oscar_bf16_rows& to, int token, int head, uint4 channels) {
  auto* const row = static_cast<unsigned char*>(to.data) + token * to.token_stride + head * to.head_stride;
  reinterpret_cast<uint4*>(row)[UnpackTile<kDim>::block()] = channels;
}
template <int kDim>
__device__ __forceinline__ void store_row(const oscar_bf16_rows& to, int token, int head, const float (&values)[8]) {
  store_row<kDim>(to, token, head, rounded(values));
}

/// Blocks of a launch for each of `parts` parts (heads, sides) of so many tokens: no more than the chip holds at once.
template <int kDim>
unsigned unpack_blocks(int num_tokens, int parts) {
  constexpr int kBlocks = 8 * 132;  // on an H100
  const int tiles = (num_tokens + UnpackTile<kDim>::kTokens - 1) / UnpackTile<kDim>::kTokens;
  const int most = kBlocks / parts > 1 ? kBlocks / parts : 1;
  return static_cast<unsigned>(tiles < most ? tiles : most);
}

// oscar_coded_unpack(): y = s (c - (2^w - 1) / 2) step in float32, rounded to bfloat16. Reads the table that
// oscar_coded_pack() writes by. A thread has the same block of channels in all its rows: one code of each string.

namespace {

struct CodedUnpackParams {
  oscar_coded_unpack_args args;
  int page_shift;
  int first_side;  // of the keys (0) and values (1) that are read
};

/// What a kernel of rows that do not turn knows of turning.
struct NoTurn {
  __device__ NoTurn(const oscar_coded_turned&, int) {}
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

/// Turns the rows of a tile's tokens, a warp a row at a time. By all threads of a block.
template <int kDim>
__device__ __forceinline__ void turn_tile(const TurnedPairs<kDim>& pairs, const CodedUnpackParams& p, int first,
                                          __nv_bfloat16* rows) {
  constexpr int kWarps = kUnpackThreads / 32;
  __syncthreads();  // every thread has written its channels
  for (int i = static_cast<int>(threadIdx.x) / 32; i < UnpackTile<kDim>::kTokens; i += kWarps) {
    if (first + i >= p.args.num_tokens) break;
    __nv_bfloat16* const row = rows + i * kDim;
    pairs.forth([&](int channel) { return row + channel; }, p.args.turned.positions[first + i]);
  }
  __syncthreads();
}

/// Grid: (any number, sides * num_kv_heads). kTurns: keys before RoPE, and no values.
template <int kDim, bool kTurns>
__global__ void __launch_bounds__(kUnpackThreads, kTurns ? 2 : 4)
    coded_unpack(const __grid_constant__ CodedUnpackParams p) {
  using Tile = UnpackTile<kDim>;
  __shared__ CodedUnpackPlaces shared;
  __shared__ uint4 turning[kTurns ? Tile::kTokens * Tile::kLanes : 1];  // rows of a tile
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
  std::conditional_t<kTurns, TurnedPairs<kDim>, NoTurn> pairs(p.args.turned, head);
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
      if constexpr (kTurns) {
        turning[(Tile::token(first, i) - first) * Tile::kLanes + block] = rounded(values);
      } else {
        store_row<kDim>(to, Tile::token(first, i), head, values);
      }
    }
    if constexpr (kTurns) {
      turn_tile<kDim>(pairs, p, first, reinterpret_cast<__nv_bfloat16*>(turning));
#pragma unroll
      for (int i = 0; i < kUnpackRows; ++i) {
        const int token = Tile::token(first, i);
        if (slots[i] >= 0) store_row<kDim>(to, token, head, turning[(token - first) * Tile::kLanes + block]);
      }
      __syncthreads();  // every thread has read its channels
    }
  }
}

/// Launches the kernel for so many sides from p.first_side on.
template <int kDim, bool kTurns>
int launch(const CodedUnpackParams& p, int sides, cudaStream_t stream) {
  const int parts = p.args.num_kv_heads * sides;
  const dim3 grid(unpack_blocks<kDim>(p.args.num_tokens, parts), static_cast<unsigned>(parts));
  return launch_overlapping<coded_unpack<kDim, kTurns>>(p, grid, kUnpackThreads, 0, 0, stream);
}

template <int kDim>
int launch_sides(CodedUnpackParams p, cudaStream_t stream) {
  const bool keys = p.args.k.data != nullptr, values = p.args.v.data != nullptr;
  p.first_side = keys ? 0 : 1;
  if (p.args.turned.table == nullptr) return launch<kDim, false>(p, keys && values ? 2 : 1, stream);
  const int status = launch<kDim, true>(p, 1, stream);
  if (status != cudaSuccess || !values) return status;
  p.first_side = 1;
  return launch<kDim, false>(p, 1, stream);
}

const char* problem(const oscar_coded_unpack_args& a) {
  if (a.num_tokens < 0 || a.num_kv_heads < 1 || a.num_kv_heads > 32767) {
    return "num_tokens or num_kv_heads is out of range";
  }
  if (const char* wrong = head_dim_problem(a.head_dim)) return wrong;
  if (const char* wrong = coded_pages_problem(a.table, a.page_size, a.pages, a.page_stride, a.token_bytes))
    return wrong;
  if (a.slots == nullptr) return "slots must not be null";
  if (a.k.data == nullptr && a.v.data == nullptr) return "there is room neither for keys nor for values";
  for (const oscar_bf16_rows* rows : {&a.k, &a.v}) {
    if (const char* wrong = rows_problem({rows->data, 0, rows->token_stride, rows->head_stride}, 16)) return wrong;
  }
  return turned_problem(a.turned, a.k.data, true);
}

}  // namespace

}  // namespace oscar::cuda

using namespace oscar::cuda;
extern "C" __attribute__((visibility("default"))) int oscar_coded_unpack(const oscar_coded_unpack_args* args,
                                                                         void* stream) {
  if (const char* wrong = args == nullptr ? "no arguments" : problem(*args); wrong != nullptr) return refuse(wrong);
  if (args->num_tokens == 0) return cudaSuccess;
  const CodedUnpackParams p{*args, std::countr_zero(static_cast<unsigned>(args->page_size)), 0};
  return with_head_dim(args->head_dim,
                       [&]<int kDim>() { return launch_sides<kDim>(p, static_cast<cudaStream_t>(stream)); });
}
