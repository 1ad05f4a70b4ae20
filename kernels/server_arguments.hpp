// SPDX-License-Identifier: MIT
// What the C functions of kernels/include/oscar refuse, and how they say so. Compiled without CUDA, too.
#pragma once

#include <cstdint>
#include <string>

#include "oscar/coded_attention.h"

namespace oscar::cuda {

[[nodiscard]] inline bool is_aligned(const void* pointer, unsigned bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

/// What is wrong; null if nothing is.
[[nodiscard]] const char* head_dim_problem(int head_dim);
/// Returns what is wrong with rows that are read or written `alignment` bytes at a time; null: nothing.
[[nodiscard]] const char* rows_problem(const oscar_paged_rows& rows, int alignment);

/// Returns what is wrong with the numbers of queries, and of their scores; null: nothing.
[[nodiscard]] const char* batch_problem(const oscar_coded_decode_args& args);
[[nodiscard]] const char* table_problem(const oscar_page_table& table);

/// Returns what is wrong with the pages of a coded cache, or with the table for oscar_coded_pack() and
/// oscar_coded_unpack(); null: nothing.
[[nodiscard]] const char* coded_pages_problem(const void* table, int page_size, const void* pages,
                                              std::int64_t page_stride, std::int64_t token_bytes);

inline constexpr int kRefused = 1;  // cudaErrorInvalidValue
/// Keeps the reason for oscar_last_error(), and returns kRefused.
int refuse(const std::string& reason);

}  // namespace oscar::cuda
