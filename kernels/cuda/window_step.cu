// SPDX-License-Identifier: MIT
// step_windows(): one block finds the blocks of the cache that the step reads in windows and gives entries to those
// that have none; then many write what attention is told.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/window_step.hpp"

namespace oscar {
namespace {

constexpr int kGiveThreads = 1024, kTellThreads = 256, kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffU;
constexpr unsigned long long kNone = ~0ULL, kAsked = ~1ULL;  // -1 and -2 as entries: what a block has
constexpr int kEntryBits = 24;                               // of a key

/// The tokens of one request.
struct Seen {
  int before, after, sinks, begin;  // begin: the first token of the recent window

  __device__ Seen(const WindowStepCall& p, int request) : after(p.lengths[request]) {
    const int count = p.starts[request + 1] - p.starts[request];
    before = max(after - count, 0);
    if (count == 0) after = before;
    sinks = min(before, p.sink);
    begin = max(before + 1 - max(p.recent, 1), sinks);
  }
  [[nodiscard]] __device__ bool takes_part() const { return after > before; }
};

[[nodiscard]] __device__ int block_at(const WindowStepCall& p, int request, int number) {
  return p.table[request * p.table_stride + min(number, p.table_width - 1)];
}

/// Notes that the step reads a block; puts it in the room if it has no entry and nobody did.
__device__ void ask(const WindowStepCall& p, int block, int& asked) {
  auto* const of_block = reinterpret_cast<unsigned long long*>(p.entry_of + block);
  const unsigned long long entry = atomicCAS(of_block, kNone, kAsked);
  if (entry == kNone) {
    p.room[atomicAdd(&asked, 1)] = block;
  } else if (entry != kAsked) {
    p.read_in[entry] = p.step;
  }
}

/// The least of a block's numbers, for thread 0.
[[nodiscard]] __device__ unsigned long long least_of_block(unsigned long long own, unsigned long long* shared) {
  for (int half = kWarp / 2; half > 0; half /= 2) own = min(own, __shfl_xor_sync(kAllLanes, own, half));
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = own;
  __syncthreads();
  if (threadIdx.x >= kWarp) return own;
  own = shared[threadIdx.x];
  for (int half = kWarp / 2; half > 0; half /= 2) own = min(own, __shfl_xor_sync(kAllLanes, own, half));
  return own;
}

/// Gives a block the entry that was longest not read; none, if all are read in this step.
__device__ void give(const WindowStepCall& p, std::int64_t block, unsigned long long key) {
  const auto entry = static_cast<std::int64_t>(key & ((1ULL << kEntryBits) - 1));
  if (static_cast<std::int64_t>(key >> kEntryBits) == p.step) {
    p.entry_of[block] = -1;
    return;
  }
  if (const std::int64_t former = p.block_of[entry]; former >= 0) p.entry_of[former] = -1;
  p.entry_of[block] = entry, p.block_of[entry] = block, p.read_in[entry] = p.step;
}

__global__ void __launch_bounds__(kGiveThreads) give_entries(const __grid_constant__ WindowStepCall p) {
  __shared__ int asked;
  __shared__ unsigned long long least[kGiveThreads / kWarp];
  cuda::follow_previous_launch();
  if (threadIdx.x == 0) asked = 0;
  __syncthreads();
  const int sink_blocks = (p.sink + p.block_size - 1) / p.block_size;
  const int each = sink_blocks + (p.recent + p.new_tokens) / p.block_size + 2;
  for (int i = static_cast<int>(threadIdx.x); i < p.requests * each; i += kGiveThreads) {
    const int request = i / each, place = i % each;
    const Seen seen(p, request);
    if (!seen.takes_part()) continue;
    const bool of_sink = place < sink_blocks;
    const int number = of_sink ? place : seen.begin / p.block_size + place - sink_blocks;
    const int end = of_sink ? min(seen.after, p.sink) : seen.after;
    if (number * p.block_size < end) ask(p, block_at(p, request, number), asked);
  }
  __syncthreads();
  for (int i = 0; i < asked; ++i) {
    unsigned long long own = kNone;
    for (int entry = static_cast<int>(threadIdx.x); entry < p.entries; entry += kGiveThreads) {
      const auto read_in = static_cast<unsigned long long>(p.read_in[entry]);
      own = min(own, read_in << kEntryBits | static_cast<unsigned>(entry));
    }
    own = least_of_block(own, least);
    if (threadIdx.x == 0) give(p, p.room[i], own);
    __syncthreads();
  }
}

/// Returns the slot of a token's copy; negative: none.
[[nodiscard]] __device__ int copy_of(const WindowStepCall& p, int block, int place) {
  const auto entry = static_cast<int>(p.entry_of[block]);
  return entry < 0 ? -1 : entry * p.block_size + place;
}

/// Grid: (any number, requests + 1): the last has the tokens that are written.
__global__ void __launch_bounds__(kTellThreads) tell_attention(const __grid_constant__ WindowStepCall p) {
  cuda::follow_previous_launch();
  const int first = static_cast<int>(blockIdx.x) * kTellThreads + static_cast<int>(threadIdx.x);
  const int step = static_cast<int>(gridDim.x) * kTellThreads, request = static_cast<int>(blockIdx.y);
  if (blockIdx.y == gridDim.y - 1) {
    for (int i = first; i < p.all_tokens; i += step) {
      const auto slot = static_cast<int>(p.written[i]);
      p.slots[i] = slot;
      p.kept[i] = slot < 0 ? -1 : copy_of(p, slot / p.block_size, slot % p.block_size);
    }
    return;
  }
  const Seen seen(p, request);
  const int first_page = p.table_width - p.page_width, width = p.sink + p.recent - 1 + p.new_tokens;
  for (int i = first; i < p.page_width; i += step) {
    p.pages[std::int64_t{request} * p.page_width + i] = block_at(p, request, first_page + i);
  }
  for (int i = first; i < width; i += step) {
    const int token = i < seen.sinks ? i : i + seen.begin - seen.sinks;
    const int block = block_at(p, request, token / p.block_size);
    p.copies[std::int64_t{request} * width + i] = max(copy_of(p, block, token % p.block_size), 0);
  }
  if (first == 0) {
    p.history[request] = seen.takes_part() ? seen.begin - seen.sinks : 0;
    p.copy_lengths[request] = seen.takes_part() ? seen.sinks + seen.after - seen.begin : 0;
  }
}

}  // namespace

int step_windows(const WindowStepCall& call, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (const int failed = cuda::launch_overlapping<give_entries>(call, dim3(1), kGiveThreads, 0, 0, on);
      failed != cudaSuccess) {
    return failed;
  }
  const int widest = std::max({call.page_width, call.sink + call.recent - 1 + call.new_tokens, call.all_tokens});
  const dim3 grid(static_cast<unsigned>(std::min((widest + kTellThreads - 1) / kTellThreads, 8)),
                  static_cast<unsigned>(call.requests + 1));
  return cuda::launch_overlapping<tell_attention>(call, grid, kTellThreads, 0, 0, on);
}

}  // namespace oscar
