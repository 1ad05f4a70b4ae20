// SPDX-License-Identifier: MIT
// Which blocks of a paged cache have exact copies in a step of a server, on GPUs: what oscar_kv/window_blocks.py
// computes where a step has the requests of the one before, each with a few new tokens. For liboscar_torch.so.
#pragma once

#include <cstdint>

namespace oscar {

/// All pointers are device memory.
struct WindowStepCall {
  int block_size, sink, recent;  // tokens
  int blocks, entries;           // of the cache; copies of blocks
  int requests, new_tokens;      // of a request: this many, or none
  int all_tokens;                // of the step, with those that fill it up
  std::int64_t step;             // its number, larger than those before

  const std::int32_t* table;  // (requests, table_width): blocks of each request
  std::int64_t table_stride;  // elements
  int table_width;
  const std::int32_t* starts;   // (requests + 1): where the tokens of each request begin in the step
  const std::int32_t* lengths;  // (requests): tokens of each, with the new ones
  const std::int64_t* written;  // (all_tokens): slots of the cache; negative: none

  std::int64_t* entry_of;  // (blocks): -1: none
  std::int64_t* block_of;  // (entries)
  std::int64_t* read_in;   // (entries): the step
  std::int64_t* room;      // (blocks)

  std::int32_t *slots, *kept;           // (all_tokens): of the cache and of copies; negative: none
  std::int32_t *pages, *history;        // (requests, page_width) and (requests): oscar_kv's DecodeTables
  std::int32_t *copies, *copy_lengths;  // (requests, sink + recent - 1 + new_tokens) and (requests)
  int page_width;                       // table_width less the pages of the sink, at least 1
};

/// Enqueues the work on a cudaStream_t; two launches, nothing is allocated. Returns a cudaError_t.
[[nodiscard]] int step_windows(const WindowStepCall& call, void* stream);

}  // namespace oscar
