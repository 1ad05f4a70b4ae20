// SPDX-License-Identifier: MIT
#include "kernels/cuda/int2_arguments.hpp"

#include <cuda_runtime.h>

namespace oscar::cuda {
namespace {
thread_local std::string last_error;
}

const char* shape_problem(int head_dim, int group_size, oscar_dtype param_dtype) {
  if (head_dim != 64 && head_dim != 128 && head_dim != 256) return "head_dim must be 64, 128 or 256";
  if (group_size != head_dim && group_size != 64 && group_size != 32) return "group_size must be head_dim, 64 or 32";
  if (param_dtype != OSCAR_FLOAT32 && param_dtype != OSCAR_FLOAT16 && param_dtype != OSCAR_BFLOAT16) {
    return "param_dtype must be float32, float16 or bfloat16";
  }
  return nullptr;
}

const char* rows_problem(const oscar_paged_rows& rows, int alignment) {
  constexpr const char* kMisaligned = "rows must be aligned: see oscar/int2_attention.h";
  if (reinterpret_cast<std::uintptr_t>(rows.data) % static_cast<unsigned>(alignment) != 0) return kMisaligned;
  for (const std::int64_t stride : {rows.page_stride, rows.token_stride, rows.head_stride}) {
    if (stride < 0 || stride > INT32_MAX) return "strides must be from 0 to 2^31 - 1 bytes";
    if (stride % alignment != 0) return kMisaligned;
  }
  return nullptr;
}

int refuse(const std::string& reason) {
  last_error = reason;
  return cudaErrorInvalidValue;
}

}  // namespace oscar::cuda

extern "C" __attribute__((visibility("default"))) const char* oscar_int2_error(void) {
  return oscar::cuda::last_error.c_str();
}
