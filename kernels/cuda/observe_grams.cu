// SPDX-License-Identifier: MIT
// Second moments of queries, keys and values in one launch. A block takes a chunk of the rows of one KV head, brings
// kRows of them at a time to shared memory, and multiplies them with themselves by tensor cores; its warps have three
// tiles each of the upper triangle, whose sums stay in fp64 registers until they are added to those of the layer.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>
#include <mma.h>

#include "kernels/cuda/observe_rows.cuh"

namespace oscar::cuda {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int kTile = 16, kWarpTiles = 3, kWarps = 12, kGramThreads = kWarps * 32, kBlockTiles = kWarps * kWarpTiles;

/// How the rows of all KV heads are dealt to blocks: those of queries first, then keys, then values.
struct Deal {
  int chunk_rows = 0, q_chunks = 0, kv_chunks = 0, key_groups = 0, value_groups = 0;  // groups of kBlockTiles tiles
  [[nodiscard]] __host__ __device__ int q_blocks() const { return q_chunks * key_groups; }     // of one head
  [[nodiscard]] __host__ __device__ int k_blocks() const { return kv_chunks * key_groups; }    // likewise
  [[nodiscard]] __host__ __device__ int v_blocks() const { return kv_chunks * value_groups; }  // likewise
};

/// What one block does.
struct Job {
  ObservedRows rows;
  double* sums;  // of the head
  double factor;
  int head, rows_per_token, begin, end, first_tile;
  bool keys;
};

__device__ Job job_of(const ObserveCall& call, const Deal& deal) {
  const int heads = call.k.heads, group = call.q.heads / heads, tokens = call.batch * call.tokens;
  int i = static_cast<int>(blockIdx.x);
  const auto job = [&](const ObservedRows& rows, double* sums, double factor, int per_token, int blocks, int chunks,
                       bool keys) {
    const int head = i / blocks, chunk = i % blocks % chunks, tiles = i % blocks / chunks;
    const int begin = chunk * deal.chunk_rows;
    return Job{rows,
               sums + static_cast<std::int64_t>(head) * rows.dim * rows.dim,
               factor,
               head,
               per_token,
               begin,
               min(begin + deal.chunk_rows, tokens * per_token),
               tiles * kBlockTiles,
               keys && tiles == 0};
  };
  if (i < heads * deal.q_blocks()) {
    return job(call.q, call.qqt, call.query_factor, group, deal.q_blocks(), deal.q_chunks, false);
  }
  i -= heads * deal.q_blocks();
  if (i < heads * deal.k_blocks()) return job(call.k, call.ktk, 1, 1, deal.k_blocks(), deal.kv_chunks, true);
  i -= heads * deal.k_blocks();
  return job(call.v, call.vtv, 1, 1, deal.v_blocks(), deal.kv_chunks, false);
}

/// Starts copying kRows rows from row `first` on, rows of zeros for those that do not count.
template <class T, int kRows>
__device__ void load_rows(const ObserveCall& call, const Job& job, int first, int stride, T* tile) {
  const int pieces = job.rows.dim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * pieces; i += kGramThreads) {
    const int row = first + i / pieces, channel = i % pieces * 8;
    const int token = row / job.rows_per_token, head = job.head * job.rows_per_token + row % job.rows_per_token;
    const bool counts = row < job.end && counts_token(call, static_cast<unsigned>(token));
    const auto* from = static_cast<const T*>(job.rows.data);
    if (counts) {
      from += token / call.tokens * job.rows.batch_stride + token % call.tokens * job.rows.token_stride +
              head * job.rows.head_stride + channel;
    }
    __pipeline_memcpy_async(tile + i / pieces * stride + channel, from, 16, counts ? 0 : 16);
  }
  __pipeline_commit();
}

/// Where this warp's tiles are in the upper triangle of n x n tiles; row -1: there is none.
__device__ void tiles_of_warp(int first, int n, int (&row)[kWarpTiles], int (&column)[kWarpTiles]) {
  for (int tile = 0; tile < kWarpTiles; ++tile) {
    int i = first + static_cast<int>(threadIdx.x) / 32 * kWarpTiles + tile;
    row[tile] = -1, column[tile] = -1;
    if (i >= n * (n + 1) / 2) continue;
    int r = 0;
    for (; i >= n - r; ++r) i -= n - r;
    row[tile] = r, column[tile] = r + i;
  }
}

/// sums += the tile (row, column) of x^T x, in the places of a fragment.
template <class T, int kRows>
__device__ void add_product(const T* x, int stride, int row, int column, double (&sums)[8]) {
  wmma::fragment<wmma::accumulator, kTile, kTile, kTile, float> product;
  wmma::fill_fragment(product, 0.0F);
  for (int k = 0; k < kRows; k += kTile) {
    wmma::fragment<wmma::matrix_a, kTile, kTile, kTile, T, wmma::col_major> a;
    wmma::fragment<wmma::matrix_b, kTile, kTile, kTile, T, wmma::row_major> b;
    wmma::load_matrix_sync(a, x + k * stride + row * kTile, static_cast<unsigned>(stride));
    wmma::load_matrix_sync(b, x + k * stride + column * kTile, static_cast<unsigned>(stride));
    wmma::mma_sync(product, a, b, product);
  }
  static_assert(product.num_elements == 8);
#pragma unroll
  for (int e = 0; e < 8; ++e) sums[e] += static_cast<double>(product.x[e]);
}

/// positions: a fragment of the numbers 0 … 255, which tells where each of its elements belongs.
__device__ void add_to_layer(const Job& job, const float* positions, int row, int column, const double (&sums)[8]) {
  wmma::fragment<wmma::accumulator, kTile, kTile, kTile, float> place;
  wmma::load_matrix_sync(place, positions, kTile, wmma::mem_row_major);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int at = static_cast<int>(place.x[e]);
    atomicAdd(job.sums + (row * kTile + at / kTile) * job.rows.dim + column * kTile + at % kTile, job.factor * sums[e]);
  }
}

/// The sum of a channel over kRows rows: few at a time in fp32.
template <class T, int kRows>
__device__ double sum_of_channel(const T* x, int stride) {
  double sum = 0;
  for (int row = 0; row < kRows; row += 16) {
    float part = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) part += static_cast<float>(x[(row + i) * stride]);
    sum += static_cast<double>(part);
  }
  return sum;
}

template <class T, int kRows>
__global__ void __launch_bounds__(kGramThreads, 1) add_grams(const ObserveCall call, const Deal deal) {
  constexpr int kMostChannels = kRows == 64 ? 128 : 256, kPadding = 8;  // against bank conflicts
  __shared__ __align__(128) T tiles[2][kRows * (kMostChannels + kPadding)];
  __shared__ __align__(128) float positions[kTile * kTile];
  const Job job = job_of(call, deal);
  const int channel = static_cast<int>(threadIdx.x), stride = job.rows.dim + kPadding;
  int row[kWarpTiles], column[kWarpTiles];
  tiles_of_warp(job.first_tile, job.rows.dim / kTile, row, column);
  if (threadIdx.x < kTile * kTile) positions[threadIdx.x] = static_cast<float>(threadIdx.x);
  double sums[kWarpTiles][8] = {}, key_sum = 0;
  load_rows<T, kRows>(call, job, job.begin, stride, tiles[0]);
  for (int first = job.begin, now = 0; first < job.end; first += kRows, now ^= 1) {
    if (first + kRows < job.end) {
      load_rows<T, kRows>(call, job, first + kRows, stride, tiles[now ^ 1]);
      __pipeline_wait_prior(1);
    } else {
      __pipeline_wait_prior(0);
    }
    __syncthreads();
#pragma unroll
    for (int tile = 0; tile < kWarpTiles; ++tile) {
      if (row[tile] >= 0) add_product<T, kRows>(tiles[now], stride, row[tile], column[tile], sums[tile]);
    }
    if (job.keys && channel < job.rows.dim) key_sum += sum_of_channel<T, kRows>(tiles[now] + channel, stride);
    __syncthreads();  // before the next rows overwrite these
  }
#pragma unroll
  for (int tile = 0; tile < kWarpTiles; ++tile) {
    if (row[tile] >= 0) add_to_layer(job, positions, row[tile], column[tile], sums[tile]);
  }
  if (job.keys && channel < job.rows.dim) atomicAdd(call.key_sums + job.head * job.rows.dim + channel, key_sum);
}

int groups_of(int dim) {
  const int n = dim / kTile;
  return (n * (n + 1) / 2 + kBlockTiles - 1) / kBlockTiles;
}

/// Chunks that keep all multiprocessors busy: least waves times (loads of a block, and about four for its end).
Deal deal_rows(const ObserveCall& call, int multiprocessors, int rows_per_load) {
  const int tokens = call.batch * call.tokens, group = call.q.heads / call.k.heads;
  Deal best;
  long best_cost = 0;
  for (int loads = 1; loads <= 256; ++loads) {
    Deal deal{.chunk_rows = loads * rows_per_load};
    deal.q_chunks = (tokens * group + deal.chunk_rows - 1) / deal.chunk_rows;
    deal.kv_chunks = (tokens + deal.chunk_rows - 1) / deal.chunk_rows;
    deal.key_groups = groups_of(call.k.dim), deal.value_groups = groups_of(call.v.dim);
    const long blocks = static_cast<long>(call.k.heads) * (deal.q_blocks() + deal.k_blocks() + deal.v_blocks());
    const long cost = (blocks + multiprocessors - 1) / multiprocessors * (loads + 4);
    if (best_cost == 0 || cost < best_cost) best = deal, best_cost = cost;
  }
  return best;
}

template <class T, int kRows>
void launch(const ObserveCall& call, int multiprocessors, cudaStream_t stream) {
  const Deal deal = deal_rows(call, multiprocessors, kRows);
  const int blocks = call.k.heads * (deal.q_blocks() + deal.k_blocks() + deal.v_blocks());
  add_grams<T, kRows><<<static_cast<unsigned>(blocks), kGramThreads, 0, stream>>>(call, deal);
}

template <class T>
void launch(const ObserveCall& call, int multiprocessors, cudaStream_t stream) {
  if (call.k.dim <= 128 && call.v.dim <= 128) {
    launch<T, 64>(call, multiprocessors, stream);
  } else {
    launch<T, 32>(call, multiprocessors, stream);
  }
}

}  // namespace

void launch_grams(const ObserveCall& call, int multiprocessors, cudaStream_t stream) {
  if (call.bfloat16) {
    launch<__nv_bfloat16>(call, multiprocessors, stream);
  } else {
    launch<__half>(call, multiprocessors, stream);
  }
}

}  // namespace oscar::cuda
