// SPDX-License-Identifier: MIT
// oscar_int2_unpack(): (code - zero) * scale in float32, rounded to bfloat16: the bits of the codecs that are defined
// in torch.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/fast_divide.cuh"
#include "kernels/cuda/unpack_rows.cuh"

namespace oscar::cuda {
namespace {

struct Int2UnpackParams {
  oscar_int2_unpack_args args;
  FastDivide by_page_size;
};

__device__ __forceinline__ float2 load_pair(const float* from) { return *reinterpret_cast<const float2*>(from); }
__device__ __forceinline__ float2 load_pair(const __half* from) {
  return __half22float2(*reinterpret_cast<const __half2*>(from));
}
__device__ __forceinline__ float2 load_pair(const __nv_bfloat16* from) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
}

__device__ __forceinline__ const unsigned char* row_at(const oscar_paged_rows& rows, int page, int token, int head) {
  return static_cast<const unsigned char*>(rows.data) + page * rows.page_stride + token * rows.token_stride +
         head * rows.head_stride;
}

/// Grid: (any number, num_kv_heads). The codes of a thread's channels are two bits each of eight neighbouring bytes.
template <int kDim, class Param>
__global__ void __launch_bounds__(kUnpackThreads) int2_unpack(const __grid_constant__ Int2UnpackParams p) {
  using Tile = UnpackTile<kDim>;
  constexpr int kPieces = kDim / 32;  // of eight bytes of a row of codes
  const int head = static_cast<int>(blockIdx.y), block = Tile::block(), shift = block / kPieces * 2;
  const int piece = block % kPieces, group = 8 * block / p.args.group_size;
  follow_previous_launch();
  for (int first = static_cast<int>(blockIdx.x) * Tile::kTokens; first < p.args.num_tokens;
       first += static_cast<int>(gridDim.x) * Tile::kTokens) {
    int slots[kUnpackRows];
    Tile::slots_of(p.args.slots, first, p.args.num_tokens, slots);
    uint2 codes[kUnpackRows];
    float2 params[kUnpackRows];
#pragma unroll
    for (int i = 0; i < kUnpackRows; ++i) {
      if (slots[i] < 0) continue;
      const int page = p.by_page_size.quotient(slots[i]), token = slots[i] - page * p.args.page_size;
      codes[i] = reinterpret_cast<const uint2*>(row_at(p.args.codes, page, token, head))[piece];
      params[i] = load_pair(reinterpret_cast<const Param*>(row_at(p.args.params, page, token, head)) + 2 * group);
    }
#pragma unroll
    for (int i = 0; i < kUnpackRows; ++i) {
      if (slots[i] < 0) continue;
      const unsigned halves[2] = {codes[i].x >> shift & 0x03030303U, codes[i].y >> shift & 0x03030303U};
      float values[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float code = __uint_as_float(__byte_perm(halves[j / 4], kWholeNumber, 0x7650U + j % 4)) - kWholeBase;
        values[j] = (code - params[i].y) * params[i].x;
      }
      store_row<kDim>(p.args.out, Tile::token(first, i), head, values);
    }
  }
}

template <int kDim, class Param>
int launch(const Int2UnpackParams& p, cudaStream_t stream) {
  const int heads = p.args.num_kv_heads;
  const dim3 grid(unpack_blocks<kDim>(p.args.num_tokens, heads), static_cast<unsigned>(heads));
  return launch_overlapping<int2_unpack<kDim, Param>>(p, grid, kUnpackThreads, 0, 0, stream);
}

template <int kDim>
int launch_dim(const Int2UnpackParams& p, cudaStream_t stream) {
  switch (p.args.param_dtype) {
    case OSCAR_FLOAT32:
      return launch<kDim, float>(p, stream);
    case OSCAR_FLOAT16:
      return launch<kDim, __half>(p, stream);
    default:
      return launch<kDim, __nv_bfloat16>(p, stream);
  }
}

const char* problem(const oscar_int2_unpack_args& a) {
  if (a.num_tokens < 0 || a.num_kv_heads < 1 || a.num_kv_heads > 65535) {
    return "num_tokens or num_kv_heads is out of range";
  }
  if (const char* wrong = shape_problem(a.head_dim, a.group_size, a.param_dtype)) return wrong;
  if (a.page_size < 1) return "page_size must be positive";
  if (a.slots == nullptr || a.codes.data == nullptr || a.params.data == nullptr || a.out.data == nullptr) {
    return "slots, codes, params and out must not be null";
  }
  if (const char* wrong = rows_problem(a.codes, 8)) return wrong;
  if (const char* wrong = rows_problem(a.params, a.param_dtype == OSCAR_FLOAT32 ? 8 : 4)) return wrong;
  return rows_problem({a.out.data, 0, a.out.token_stride, a.out.head_stride}, 16);
}

}  // namespace
}  // namespace oscar::cuda

using namespace oscar::cuda;

extern "C" __attribute__((visibility("default"))) int oscar_int2_unpack(const oscar_int2_unpack_args* args,
                                                                        void* stream) {
  if (const char* wrong = args == nullptr ? "no arguments" : problem(*args); wrong != nullptr) return refuse(wrong);
  if (args->num_tokens == 0) return cudaSuccess;
  const Int2UnpackParams p{*args, FastDivide(args->page_size)};
  const auto on = static_cast<cudaStream_t>(stream);
  switch (args->head_dim) {
    case 64:
      return launch_dim<64>(p, on);
    case 128:
      return launch_dim<128>(p, on);
    default:
      return launch_dim<256>(p, on);
  }
}
