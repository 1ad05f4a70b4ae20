// SPDX-License-Identifier: MIT
#include "kernels/server_arguments.hpp"

#include <bit>
#include <cmath>
#include <cstdint>

namespace oscar::cuda {
namespace {
thread_local std::string last_error;
}

const char* head_dim_problem(int head_dim) {
  return head_dim == 64 || head_dim == 128 || head_dim == 256 ? nullptr : "head_dim must be 64, 128 or 256";
}

const char* rows_problem(const oscar_paged_rows& rows, int alignment) {
  constexpr const char* kMisaligned = "rows must be aligned: see oscar/coded_attention.h";
  if (!is_aligned(rows.data, static_cast<unsigned>(alignment))) return kMisaligned;
  for (const std::int64_t stride : {rows.page_stride, rows.token_stride, rows.head_stride}) {
    if (stride < 0 || stride > INT32_MAX) return "strides must be from 0 to 2^31 - 1 bytes";
    if (stride % alignment != 0) return kMisaligned;
  }
  return nullptr;
}

const char* batch_problem(const oscar_coded_decode_args& a) {
  const int batch = a.batch, q_heads = a.num_q_heads, kv_heads = a.layout.num_kv_heads;
  if (batch < 1 || kv_heads < 1 || q_heads % kv_heads != 0) {
    return "batch and heads must be positive, and num_q_heads a multiple of num_kv_heads";
  }
  if (batch > 65535) return "batch must not exceed 65535";
  if (a.split_batch < 0) return "split_batch must not be negative";
  if (q_heads < kv_heads || q_heads > 16 * kv_heads) return "a KV head must serve 1 to 16 query heads";
  if (a.query_tokens < 1 || a.query_tokens > 8) return "query_tokens must be 1 to 8";
  if (!(a.softmax_scale > 0) || !std::isfinite(a.softmax_scale)) return "softmax_scale must be positive";
  if (a.soft_cap != 0 && !(a.soft_cap >= 0x1p-10F && a.soft_cap <= 0x1p14F)) {
    return "soft_cap must be from 2^-10 to 2^14, or 0";
  }
  return nullptr;
}

const char* table_problem(const oscar_page_table& table) {
  if (table.page_size < 1 || table.page_size > 256 || (table.page_size & (table.page_size - 1)) != 0) {
    return "page_size must be a power of two from 1 to 256";
  }
  if (table.max_length < 0 || table.max_length > 1 << 30) return "max_length must be from 0 to 2^30";
  if (std::int64_t{table.pages_per_sequence} * table.page_size < table.max_length) {
    return "pages_per_sequence must be enough for max_length";
  }
  if (table.lengths == nullptr || (table.max_length > 0 && table.pages == nullptr)) {
    return "lengths and pages must not be null";
  }
  return nullptr;
}

const char* coded_pages_problem(const void* table, int page_size, const void* pages, std::int64_t page_stride,
                                std::int64_t token_bytes) {
  if (table == nullptr || !is_aligned(table, 16)) {
    return "table must be device memory, 16-byte aligned";
  }
  if (page_size < 4 || page_size > 256 || !std::has_single_bit(static_cast<unsigned>(page_size))) {
    return "page_size must be a power of two from 4 to 256";
  }
  if (pages == nullptr || !is_aligned(pages, 16)) {
    return "pages must not be null, and 16-byte aligned";
  }
  if (page_stride < page_size * token_bytes || page_stride % 16 != 0 || page_stride > INT32_MAX) {
    return "page_stride must be a multiple of 16, enough for page_size * token_bytes, and less than 2 GiB";
  }
  return nullptr;
}

int refuse(const std::string& reason) {
  last_error = reason;
  return kRefused;
}

}  // namespace oscar::cuda

extern "C" __attribute__((visibility("default"))) const char* oscar_last_error(void) {
  return oscar::cuda::last_error.c_str();
}
