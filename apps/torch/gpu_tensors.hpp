// SPDX-License-Identifier: MIT
// CUDA tensors as the arguments of oscar/int2_attention.h and its family. Errors: RuntimeError with the tensor's name.
#pragma once

#include "oscar/int2_attention.h"
#include "stable_torch.hpp"

namespace oscar::operators {

/// Throws unless x is on the device of `like`, has so many dimensions and the type, and its last dimension is dense.
void check_tensor(const Tensor& x, const char* name, const Tensor& like, int64_t dims, ScalarType type);

/// The type of x. Throws unless it is float32, float16 or bfloat16.
[[nodiscard]] oscar_dtype dtype_of(const Tensor& x, const char* name);

/// A pool (pages, page size, heads, ...) of rows. Throws unless it has so many heads.
[[nodiscard]] oscar_paged_rows rows_of(const Tensor& pool, const char* name, int64_t heads);

/// x (tokens, num_kv_heads, head_dim) of bfloat16, to be written. Throws unless it has a row for each slot.
[[nodiscard]] oscar_bf16_rows target_of(const Tensor& x, const char* name, const Tensor& slots, int64_t heads,
                                        int64_t dim);

/// pages (sequences of q, pages of each) and lengths (sequences), both int32. pool: (pages, page size, ...).
[[nodiscard]] oscar_page_table table_of(const Tensor& pages, const char* name, const Tensor& lengths, const Tensor& q,
                                        const Tensor& pool);

}  // namespace oscar::operators
