// SPDX-License-Identifier: MIT
// Which tokens of a call count, and where sampled ones go. Only for observe_*.cu.
#pragma once

#include "kernels/observe_rows.hpp"

namespace oscar::cuda {

/// Token t of batch * tokens.
__device__ inline bool counts_token(const ObserveCall& call, unsigned t) {
  if (call.mask != nullptr) {
    const unsigned tokens = static_cast<unsigned>(call.tokens);
    return call.mask[t / tokens * call.mask_batch_stride + t % tokens * call.mask_token_stride];
  }
  if (call.cu_seqlens == nullptr) return true;
  const auto boundary = [&](int i) {
    return call.cu_seqlens_64 ? static_cast<const std::int64_t*>(call.cu_seqlens)[i]
                              : static_cast<const std::int32_t*>(call.cu_seqlens)[i];
  };
  return t >= boundary(0) && t < boundary(call.boundaries - 1);
}

/// The slot of token number i of a uniform sample of n: apps/torch/observe_rows.cpp says why.
__device__ inline std::int64_t slot_of(std::int64_t i, std::uint32_t seed, std::int64_t n) {
  if (i < n) return i;
  std::uint32_t h = static_cast<std::uint32_t>(i) ^ seed;
  h = (h ^ h >> 16) * 0x45d9f3bU;
  h = (h ^ h >> 16) * 0x45d9f3bU;
  h ^= h >> 16;
  return static_cast<std::int64_t>(std::uint64_t{h} * static_cast<std::uint64_t>(i + 1) >> 32);
}

/// Adds the outer products, and keys, of all rows to the sums.
void launch_grams(const ObserveCall& call, int multiprocessors, cudaStream_t stream);

}  // namespace oscar::cuda
