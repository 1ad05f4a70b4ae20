// SPDX-License-Identifier: MIT
// What a timing of the INT2 decode attention kernel is asked, and what it answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/types.hpp"

namespace oscar {

/// One layer's decode step: a query token of each of `batch` sequences, over `tokens` keys of which the windows are
/// bfloat16 and the others INT2.
struct DecodeCase {
  std::string name;
  int batch = 1;
  std::int64_t tokens = 0;
  int num_q_heads = 32, num_kv_heads = 8, head_dim = 128, group_size = 128;
  DType scale_dtype = DType::kF32;
};

struct DecodeTiming {
  double microseconds = 0;  // median of graph replays over caches that no level of cache holds
  double bytes = 0;         // that one step must read
};

struct DecodeTimings {
  double copy_bytes_per_second = 0;  // read and written, as this GPU copies memory
  std::vector<DecodeTiming> cases;
};

}  // namespace oscar
