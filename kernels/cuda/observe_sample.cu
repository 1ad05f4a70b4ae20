// SPDX-License-Identifier: MIT
#include <cuda_runtime.h>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/observe_rows.cuh"

namespace oscar::cuda {
namespace {

constexpr unsigned kNumberThreads = 1024, kWarp = 32;

/// One block: numbers the tokens that count by a mask, in order, writes -1 for others, and counts them.
__global__ void __launch_bounds__(kNumberThreads) number_masked_tokens(const ObserveCall call) {
  __shared__ unsigned of_warp[kWarp], before_warp[kWarp], of_block;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned tokens = static_cast<unsigned>(call.batch * call.tokens);
  std::int64_t first = call.counts[0];
  __syncthreads();  // all have read it
  for (unsigned begin = 0; begin < tokens; begin += kNumberThreads) {
    const unsigned t = begin + threadIdx.x;
    const bool counts = t < tokens && counts_token(call, t);
    const unsigned votes = __ballot_sync(~0U, counts);
    if (lane == 0) of_warp[warp] = static_cast<unsigned>(__popc(votes));
    __syncthreads();
    if (warp == 0) {
      unsigned sum = of_warp[lane];
      for (unsigned distance = 1; distance < kWarp; distance *= 2) {
        const unsigned lower = __shfl_up_sync(~0U, sum, distance);
        if (lane >= distance) sum += lower;
      }
      before_warp[lane] = sum - of_warp[lane];
      if (lane == kWarp - 1) of_block = sum;
    }
    __syncthreads();
    const std::int64_t number = first + before_warp[warp] + __popc(votes & ((1U << lane) - 1));
    first += of_block;
    if (t < tokens) call.numbers[t] = counts ? number : -1;
    if (counts) claim_slot(call, number);
    __syncthreads();  // before of_warp and of_block change
  }
  if (threadIdx.x == 0) call.counts[0] = first;
}

/// A warp copies the heads of one token, 16 bytes a lane, kAtOnce times before it waits for the first.
__device__ void copy_token(const ObservedRows& rows, std::int64_t b, std::int64_t t, void* to, std::int64_t slot) {
  constexpr int kAtOnce = 4;
  const auto* from = static_cast<const std::uint16_t*>(rows.data) + b * rows.batch_stride + t * rows.token_stride;
  const int per_row = rows.dim / 8, pieces = rows.heads * per_row;
  auto* out = static_cast<uint4*>(to) + slot * pieces;
  for (int first = static_cast<int>(threadIdx.x % kWarp); first < pieces; first += kAtOnce * kWarp) {
    uint4 held[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int i = min(first + n * static_cast<int>(kWarp), pieces - 1);
      held[n] = *reinterpret_cast<const uint4*>(from + i / per_row * rows.head_stride + i % per_row * 8);
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      if (const int i = first + n * static_cast<int>(kWarp); i < pieces) out[i] = held[n];
    }
  }
}

/// Two warps a token, for keys and for values: keep it if it still owns its slot. The first thread counts what was
/// numbered in order.
__global__ void copy_sampled(const ObserveCall call) {
  if (task_index() == 0) {
    if (call.mask == nullptr) call.counts[0] += boundary(call, true) - boundary(call, false);
    call.counts[1] += call.sequences;
  }
  const auto t = task_index() / (2 * kWarp);
  if (t >= std::int64_t{call.batch} * call.tokens || call.sample == 0) return;
  const std::int64_t number = call.numbers[t];
  if (number < 0) return;
  const std::int64_t slot = slot_of(number, call.seed, call.sample);
  if (slot >= call.sample || call.owners[slot] != number) return;
  const bool keys = task_index() / kWarp % 2 == 0;
  copy_token(keys ? call.k : call.v, t / call.tokens, t % call.tokens, keys ? call.k_rows : call.v_rows, slot);
}

bool is_taken(const ObservedRows& rows) {
  const auto aligned = [](std::int64_t stride) { return stride % 8 == 0; };
  return rows.dim % 16 == 0 && rows.dim <= 256 && reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 &&
         aligned(rows.batch_stride) && aligned(rows.token_stride) && aligned(rows.head_stride);
}

}  // namespace
}  // namespace oscar::cuda

namespace oscar {

bool can_observe(const ObserveCall& call) {
  constexpr std::int64_t kMostRows = std::int64_t{1} << 30;
  return cuda::is_taken(call.q) && cuda::is_taken(call.k) && cuda::is_taken(call.v) &&
         std::int64_t{call.batch} * call.tokens * call.q.heads < kMostRows;
}

int observe_rows(const ObserveCall& call, void* stream) {
  int device = 0, multiprocessors = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (status != cudaSuccess) return status;
  auto* const queue = static_cast<cudaStream_t>(stream);
  if (call.mask != nullptr) cuda::number_masked_tokens<<<1, cuda::kNumberThreads, 0, queue>>>(call);
  if (const int failed = cuda::launch_grams(call, multiprocessors, queue); failed != cudaSuccess) return failed;
  const auto threads = static_cast<std::size_t>(call.batch) * static_cast<std::size_t>(call.tokens) * 2 * cuda::kWarp;
  cuda::copy_sampled<<<cuda::blocks_for(threads), cuda::kThreads, 0, queue>>>(call);
  return cudaGetLastError();
}

}  // namespace oscar
