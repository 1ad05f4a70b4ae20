// SPDX-License-Identifier: MIT
// Tensors as the arguments of the C functions of kernels/include/oscar, and what their operators have in common: they
// take tensors of one device, and compute by the kernels on CUDA, in torch's current stream, or by on_cpu.hpp. Errors:
// RuntimeError with the tensor's name.
#pragma once

#include "oscar/coded_attention.h"
#include "stable_torch.hpp"

namespace oscar::operators {

/// Throws unless x is on the device of `like`, has so many dimensions and the type, and its last dimension is dense.
void check_tensor(const Tensor& x, const char* name, const Tensor& like, int64_t dims, ScalarType type);

/// The type of x. Throws unless it is float32 or bfloat16.
[[nodiscard]] oscar_dtype dtype_of(const Tensor& x, const char* name);

/// A pool (pages, page size, heads, ...) of rows. Throws unless it has so many heads.
[[nodiscard]] oscar_paged_rows rows_of(const Tensor& pool, const char* name, int64_t heads);

/// x (tokens, num_kv_heads, head_dim) of bfloat16, to be read or written. Throws unless it has a row for each slot.
[[nodiscard]] oscar_bf16_rows target_of(const Tensor& x, const char* name, const Tensor& slots, int64_t heads,
                                        int64_t dim);

/// A page table (sequences, pages of each) and lengths (sequences), both int32, of pages of page_size tokens.
[[nodiscard]] oscar_page_table table_of(const Tensor& pages, const char* name, const Tensor& lengths, const Tensor& q,
                                        int64_t page_size);

/// Computes what tensors on the device of x are for: on_gpu(stream) returns a cudaError_t.
template <class OnGpu, class OnCpu>
void compute(const Tensor& x, const char* name, const OnGpu& on_gpu, const OnCpu& on_cpu) {
  if (x.is_cpu()) return on_cpu();
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  check_status(on_gpu(current_stream(x)), name, oscar_last_error);
}

/// An operator of the same arguments for tensors without data, which it would write.
template <auto operation>
struct Nothing;
template <class... Arguments, void (*operation)(Arguments...)>
struct Nothing<operation> {
  static void run(Arguments...) {}
};

}  // namespace oscar::operators
