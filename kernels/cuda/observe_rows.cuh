// SPDX-License-Identifier: MIT
// Which tokens of a call count, and where sampled ones go. Only for observe_*.cu.
#pragma once

#include "kernels/observe_rows.hpp"

namespace oscar::cuda {

/// Where the tokens that count begin and end, without a mask.
__device__ inline std::int64_t boundary(const ObserveCall& call, bool end) {
  const std::int64_t tokens = std::int64_t{call.batch} * call.tokens;
  if (call.cu_seqlens == nullptr) return end ? tokens : 0;
  const int i = end ? call.boundaries - 1 : 0;
  const std::int64_t at = call.cu_seqlens_64 ? static_cast<const std::int64_t*>(call.cu_seqlens)[i]
                                             : static_cast<const std::int32_t*>(call.cu_seqlens)[i];
  return min(max(at, std::int64_t{0}), tokens);
}

/// Token t of batch * tokens.
__device__ inline bool counts_token(const ObserveCall& call, unsigned t) {
  if (call.mask != nullptr) {
    const unsigned tokens = static_cast<unsigned>(call.tokens);
    return call.mask[t / tokens * call.mask_batch_stride + t % tokens * call.mask_token_stride];
  }
  return call.cu_seqlens == nullptr || (t >= boundary(call, false) && t < boundary(call, true));
}

/// The slot of token number i of a uniform sample of n: apps/torch/layer_sums.cpp says why.
__device__ inline std::int64_t slot_of(std::int64_t i, std::uint32_t seed, std::int64_t n) {
  if (i < n) return i;
  std::uint32_t h = static_cast<std::uint32_t>(i) ^ seed;
  h = (h ^ h >> 16) * 0x45d9f3bU;
  h = (h ^ h >> 16) * 0x45d9f3bU;
  h ^= h >> 16;
  return static_cast<std::int64_t>(std::uint64_t{h} * static_cast<std::uint64_t>(i + 1) >> 32);
}

/// Where tokens want a slot of the sample, the latest owns it.
__device__ inline void claim_slot(const ObserveCall& call, std::int64_t number) {
  if (call.sample == 0) return;
  const std::int64_t slot = slot_of(number, call.seed, call.sample);
  if (slot < call.sample) atomicMax(reinterpret_cast<long long*>(call.owners + slot), static_cast<long long>(number));
}

/// Numbers tokens first, first + step … of a call without a mask, -1 for those that do not count; counts[0] is changed
/// by a later kernel.
__device__ inline void number_tokens_in_order(const ObserveCall& call, unsigned first, unsigned step) {
  const std::int64_t begin = boundary(call, false), end = boundary(call, true), seen = call.counts[0];
  for (unsigned t = first; t < static_cast<unsigned>(call.batch * call.tokens); t += step) {
    const bool counts = t >= begin && t < end;
    call.numbers[t] = counts ? seen + t - begin : -1;
    if (counts) claim_slot(call, seen + t - begin);
  }
}

/// Adds the outer products, and keys, of all rows to the sums; without a mask, numbers tokens. Returns a cudaError_t.
int launch_grams(const ObserveCall& call, int multiprocessors, cudaStream_t stream);

}  // namespace oscar::cuda
