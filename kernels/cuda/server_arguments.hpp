// SPDX-License-Identifier: MIT
// What the C functions of kernels/include/oscar refuse, and how they say so.
#pragma once

#include <cstdint>
#include <string>

#include "oscar/coded_attention.h"

namespace oscar::cuda {

/// What is wrong; null if nothing is.
[[nodiscard]] const char* head_dim_problem(int head_dim);
/// Returns what is wrong with rows that are read or written `alignment` bytes at a time; null: nothing.
[[nodiscard]] const char* rows_problem(const oscar_paged_rows& rows, int alignment);

[[nodiscard]] const char* batch_problem(int batch, int split_batch, int q_heads, int kv_heads, float softmax_scale,
                                        float soft_cap);
[[nodiscard]] const char* table_problem(const oscar_page_table& table);

/// Returns what is wrong with the pages of a coded cache, or with the table for oscar_coded_pack() and
/// oscar_coded_unpack(); null: nothing.
[[nodiscard]] const char* coded_pages_problem(const void* table, int page_size, const void* pages,
                                              std::int64_t page_stride, std::int64_t token_bytes);

/// Keeps the reason for oscar_last_error(), and returns cudaErrorInvalidValue.
int refuse(const std::string& reason);

}  // namespace oscar::cuda
