// SPDX-License-Identifier: MIT
// Adds rows that lie on a GPU to sums and a sample that lie there too, in one stream: nothing is allocated, nothing
// waits, and the launches can be captured in a CUDA graph. What is summed: apps/torch/observe_state.hpp. Products of
// bfloat16 or float16 are exact; tensor cores add them in fp32 over 80 rows, which keep 6 digits, and those sums
// are added with twice the digits of fp32, and across blocks in fp64. Non-goals: float32 rows, CPUs.
#pragma once

#include <cstdint>

namespace oscar {

/// (batch, tokens, heads, dim), rows dense and 16-byte aligned; strides in elements.
struct ObservedRows {
  const void* data = nullptr;
  std::int64_t batch_stride = 0, token_stride = 0, head_stride = 0;
  int heads = 0, dim = 0;
};

/// Device memory throughout.
struct ObserveCall {
  bool bfloat16 = true;  // else float16
  int batch = 1, tokens = 0;
  ObservedRows q, k, v;
  /// Which tokens count: mask[b * mask_batch_stride + t * mask_token_stride]; null: all, or those that cu_seqlens says.
  const bool* mask = nullptr;
  std::int64_t mask_batch_stride = 0, mask_token_stride = 0;
  /// int32 or int64 (boundaries): tokens from the first to below the last count; null: all.
  const void* cu_seqlens = nullptr;
  bool cu_seqlens_64 = false;
  int boundaries = 0;
  /// Multiplies q^T q.
  double query_factor = 1;
  double *qqt = nullptr, *ktk = nullptr, *vtv = nullptr;  // (heads of k, dim, dim): upper triangles are added to
  double* key_sums = nullptr;                             // (heads of k, dim)
  std::int64_t* counts = nullptr;                         // tokens, sequences
  std::int64_t sequences = 0;                             // to be counted
  void *k_rows = nullptr, *v_rows = nullptr;              // (sample, heads of k, dim)
  std::int64_t* owners = nullptr;                         // (sample)
  std::int64_t sample = 0;
  std::uint32_t seed = 0;
  std::int64_t* numbers = nullptr;  // (batch * tokens): workspace
};

/// False: these types, sizes, strides or alignments are not taken.
[[nodiscard]] bool can_observe(const ObserveCall& call);
/// Adds the rows to the sums, in `stream` (a cudaStream_t) of the current device. Returns a cudaError_t.
[[nodiscard]] int observe_rows(const ObserveCall& call, void* stream);

}  // namespace oscar
