// SPDX-License-Identifier: MIT
// oscar_rotate_rows(): a block has one matrix in shared memory and takes 16 rows at a time, a warp 16 columns of the
// product. Steps of a server have few rows: what counts is the time until the first of them is there.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_cores.cuh"
#include "kernels/cuda/warp.cuh"
#include "oscar/rotate_rows.h"

namespace oscar::cuda {
namespace {

struct RotateParams {
  oscar_row_product products[OSCAR_MOST_PRODUCTS];
};

constexpr int kTileRows = 16;

template <int kDim>
struct RotatePlaces {
  static constexpr int kThreads = kTileRows * kDim / 8;  // each has one piece of 16 bytes of a tile
  static constexpr int kRows = 2 * kDim * kDim, kOut = kRows + kTileRows * 2 * kDim;
  static constexpr int kBytes = kOut + kTileRows * 2 * kDim;
};

/// The rows of the heads that share a matrix: row n is that of one head of token n / heads.
class SharingRows {
 public:
  __device__ SharingRows(const oscar_row_product& product, int matrix)
      : product_(product),
        heads_(product.num_heads / product.num_matrices),
        first_(matrix * heads_),
        count_(product.num_tokens * heads_) {}

  [[nodiscard]] __device__ int count() const { return count_; }
  [[nodiscard]] __device__ int token(int row) const { return row / heads_; }
  [[nodiscard]] __device__ int head(int row) const { return first_ + row % heads_; }

  /// Eight values from a channel on, as bfloat16, without the mean that is subtracted.
  template <int kDim>
  [[nodiscard]] __device__ uint4 load(int row, int channel) const {
    const unsigned char* const of_token = moved(product_.x, product_.x_token_stride, token(row));
    const unsigned char* const from = moved(of_token, product_.x_head_stride, head(row));
    const bool is_centred = product_.num_means > 0 && product_.adds_mean == 0;
    float4 a, b;
    if (product_.x_dtype == OSCAR_BFLOAT16) {
      const uint4 x = *reinterpret_cast<const uint4*>(from + 2 * channel);
      if (!is_centred) return x;
      a = {low_bf16(x.x), high_bf16(x.x), low_bf16(x.y), high_bf16(x.y)};
      b = {low_bf16(x.z), high_bf16(x.z), low_bf16(x.w), high_bf16(x.w)};
    } else {
      a = *reinterpret_cast<const float4*>(from + 4 * channel);
      b = *reinterpret_cast<const float4*>(from + 4 * channel + 16);
    }
    if (is_centred) subtract(a, mean<kDim>(row) + channel), subtract(b, mean<kDim>(row) + channel + 4);
    return {pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w)};
  }
  /// Two values of the mean that is added; rows behind the last have none.
  template <int kDim>
  [[nodiscard]] __device__ float2 added(int row, int channel) const {
    if (product_.num_means == 0 || product_.adds_mean == 0 || row >= count_) return {0.0F, 0.0F};
    return *reinterpret_cast<const float2*>(mean<kDim>(row) + channel);
  }
  /// Writes eight values where they are wanted.
  __device__ void store(int row, int channel, const uint4& values) const {
    if (product_.out.data != nullptr) write(product_.out, token(row), row, channel, values);
    if (product_.kept.data == nullptr) return;
    if (const int slot = product_.slots[token(row)]; slot >= 0) write(product_.kept, slot, row, channel, values);
  }

 private:
  template <int kDim>
  [[nodiscard]] __device__ const float* mean(int row) const {
    return product_.means + head(row) / (product_.num_heads / product_.num_means) * kDim;
  }
  __device__ static void subtract(float4& x, const float* mean) {
    const float4 m = *reinterpret_cast<const float4*>(mean);
    x.x -= m.x, x.y -= m.y, x.z -= m.z, x.w -= m.w;
  }
  __device__ void write(const oscar_bf16_rows& to, int number, int row, int channel, const uint4& values) const {
    const unsigned char* const at = moved(moved(to.data, to.token_stride, number), to.head_stride, head(row));
    *reinterpret_cast<uint4*>(const_cast<unsigned char*>(at) + 2 * channel) = values;
  }

  const oscar_row_product& product_;
  int heads_, first_, count_;
};

/// The product of 16 rows at `rows` and the warp's 16 columns of the matrix, on top of what is in sums: of columns 2t
/// and 2t + 1 of either half, of rows g and g + 8.
template <int kDim>
__device__ __forceinline__ void multiply(unsigned matrix, unsigned rows, float (&sums)[2][4]) {
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane % 16, half = lane / 16;
#pragma unroll
  for (unsigned k = 0; k < kDim / 16; ++k) {
    unsigned a[4], b[4];
    load_matrices<false>(rows + place<kDim>(row, 2 * k + half), a);
    load_matrices<true>(matrix + place<kDim>(16 * k + row, 2 * warp + half), b);
    mma<Half::kBfloat16>(sums[0], a[0], a[1], a[2], a[3], b[0], b[1]);
    mma<Half::kBfloat16>(sums[1], a[0], a[1], a[2], a[3], b[2], b[3]);
  }
}

/// Grid: (any number, all matrices); blocks of a matrix share its tiles.
template <int kDim>
__global__ void __launch_bounds__(RotatePlaces<kDim>::kThreads) rotate_rows(const __grid_constant__ RotateParams p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Shared = RotatePlaces<kDim>;
  constexpr unsigned kPieces = kDim / 8;
  int which = 0, matrix = static_cast<int>(blockIdx.y);
  while (matrix >= p.products[which].num_matrices) matrix -= p.products[which++].num_matrices;
  const oscar_row_product& product = p.products[which];
  const SharingRows rows(product, matrix);
  const auto target = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const unsigned char* const from = static_cast<const unsigned char*>(product.matrices) + matrix * (2 * kDim * kDim);
  for (unsigned i = threadIdx.x; i < kDim * kPieces; i += Shared::kThreads) {
    copy_async<16>(target + place<kDim>(i / kPieces, i % kPieces), from + i * 16);
  }
  commit_copies();
  follow_previous_launch();
  const int own = static_cast<int>(threadIdx.x / kPieces), channel = static_cast<int>(threadIdx.x % kPieces) * 8;
  const unsigned at = place<kDim>(threadIdx.x / kPieces, threadIdx.x % kPieces);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, column = static_cast<int>(threadIdx.x) / kWarp * 16;
  for (int first = static_cast<int>(blockIdx.x) * kTileRows; first < rows.count();
       first += static_cast<int>(gridDim.x) * kTileRows) {
    const bool is_there = first + own < rows.count();
    *reinterpret_cast<uint4*>(shared + Shared::kRows + at) = is_there ? rows.load<kDim>(first + own, channel) : uint4{};
    float sums[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pair = column + 8 * half + lane % 4 * 2;
      const float2 low = rows.added<kDim>(first + lane / 4, pair), high = rows.added<kDim>(first + lane / 4 + 8, pair);
      sums[half][0] = low.x, sums[half][1] = low.y, sums[half][2] = high.x, sums[half][3] = high.y;
    }
    wait_for_copies<0>();
    __syncthreads();
    multiply<kDim>(target, target + Shared::kRows, sums);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto row = static_cast<unsigned>(lane / 4), piece = static_cast<unsigned>(column / 8 + half);
      unsigned char* const out = shared + Shared::kOut + lane % 4 * 4;
      *reinterpret_cast<unsigned*>(out + place<kDim>(row, piece)) = pack_bf16(sums[half][0], sums[half][1]);
      *reinterpret_cast<unsigned*>(out + place<kDim>(row + 8, piece)) = pack_bf16(sums[half][2], sums[half][3]);
    }
    __syncthreads();
    if (is_there) rows.store(first + own, channel, *reinterpret_cast<const uint4*>(shared + Shared::kOut + at));
  }
}

template <int kDim>
int launch(const oscar_row_product* products, int count, cudaStream_t stream) {
  using Shared = RotatePlaces<kDim>;
  constexpr int kBlocks = (kDim == 64 ? 8 : kDim == 128 ? 4 : 1) * 132;  // what an H100 holds at once
  RotateParams p{};
  int kept = 0, matrices = 0, tiles = 0;
  for (int i = 0; i < count; ++i) {
    if (products[i].num_tokens == 0) continue;
    const oscar_row_product& own = p.products[kept++] = products[i];
    matrices += own.num_matrices;
    const int rows = own.num_tokens * (own.num_heads / own.num_matrices);
    tiles = std::max(tiles, (rows + kTileRows - 1) / kTileRows);
  }
  if (tiles == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(std::min(tiles, std::max(1, kBlocks / matrices))),
                  static_cast<unsigned>(matrices));
  return launch_overlapping<rotate_rows<kDim>>(p, grid, Shared::kThreads, Shared::kBytes, Shared::kBytes, stream);
}

const char* problem(const oscar_row_product& a) {
  constexpr int kMostRows = 1 << 30, kMostHeads = 4096;
  if (a.num_tokens < 0 || a.num_heads < 1 || a.num_heads > kMostHeads || a.num_tokens > kMostRows / a.num_heads)
    return "num_tokens or num_heads is out of range";
  if (a.num_matrices < 1 || a.num_heads % a.num_matrices != 0) return "num_heads must be a multiple of num_matrices";
  if (a.num_means < 0 || (a.num_means > 0 && a.num_heads % a.num_means != 0))
    return "num_heads must be a multiple of num_means";
  if (a.adds_mean != 0 && a.adds_mean != 1) return "adds_mean must be 0 or 1";
  if (a.num_tokens == 0) return nullptr;
  if (a.x == nullptr || a.matrices == nullptr) return "x and matrices must not be null";
  if ((a.num_means > 0) != (a.means != nullptr)) return "means must be there if num_means is positive";
  if (a.x_dtype != OSCAR_FLOAT32 && a.x_dtype != OSCAR_BFLOAT16) return "x must be float32 or bfloat16";
  if (a.out.data == nullptr && a.kept.data == nullptr) return "out and kept must not both be null";
  if ((a.kept.data != nullptr) != (a.slots != nullptr)) return "kept rows need slots, and slots need kept rows";
  if (const char* wrong = rows_problem({a.x, 0, a.x_token_stride, a.x_head_stride}, 16)) return wrong;
  if (const char* wrong = rows_problem({a.matrices, 0, 0, 0}, 16)) return wrong;
  if (const char* wrong = rows_problem({a.means, 0, 0, 0}, 16)) return wrong;
  if (const char* wrong = rows_problem({a.out.data, 0, a.out.token_stride, a.out.head_stride}, 16)) return wrong;
  return rows_problem({a.kept.data, 0, a.kept.token_stride, a.kept.head_stride}, 16);
}

}  // namespace
}  // namespace oscar::cuda

using namespace oscar::cuda;

extern "C" __attribute__((visibility("default"))) int oscar_rotate_rows(const oscar_row_product* products,
                                                                        std::int32_t count, std::int32_t head_dim,
                                                                        void* stream) {
  if (products == nullptr || count < 1 || count > OSCAR_MOST_PRODUCTS) return refuse("there must be 1 to 4 products");
  if (const char* wrong = head_dim_problem(head_dim)) return refuse(wrong);
  for (int i = 0; i < count; ++i) {
    if (const char* wrong = problem(products[i])) return refuse(wrong);
  }
  return with_head_dim(head_dim,
                       [&]<int kDim>() { return launch<kDim>(products, count, static_cast<cudaStream_t>(stream)); });
}
