// SPDX-License-Identifier: MIT
#include "apps/torch/stable_torch.hpp"

namespace oscar::operators {

void check_tensor(const Tensor& x, const char* name, const Tensor& like, int64_t dims, ScalarType type) {
  if (x.device() != like.device()) fail(name, " is on ", text_of(x.device()), ", not on ", text_of(like.device()));
  if (x.dim() != dims) fail(name, " has ", x.dim(), " dimensions, not ", dims);
  if (x.scalar_type() != type) fail(name, " is ", x.scalar_type(), ", not ", type);
  if (x.numel() != 0 && x.stride(-1) != 1) fail(name, "'s rows are not dense");
}

oscar_paged_rows rows_of(const Tensor& pool, const char* name, int64_t heads) {
  if (pool.size(2) != heads) fail(name, " has ", pool.size(2), " KV heads, not ", heads);
  const auto bytes = static_cast<int64_t>(pool.element_size());
  return {pool.data_ptr(), pool.stride(0) * bytes, pool.stride(1) * bytes, pool.stride(2) * bytes};
}

oscar_bf16_rows target_of(const Tensor& x, const char* name, const Tensor& slots, int64_t heads, int64_t dim) {
  check_tensor(x, name, slots, 3, ScalarType::BFloat16);
  if (!(x.size(0) == slots.size(0) && x.size(1) == heads && x.size(2) == dim))
    fail(name, " is ", shape_of(x), ", not [", slots.size(0), ", ", heads, ", ", dim, "]");
  return {x.data_ptr(), 2 * x.stride(0), 2 * x.stride(1)};
}

oscar_page_table table_of(const Tensor& pages, const char* name, const Tensor& lengths, const Tensor& q,
                          const Tensor& pool) {
  check_tensor(pages, name, q, 2, ScalarType::Int);
  if (!pages.is_contiguous()) fail(name, " is not contiguous");
  check_tensor(lengths, "lengths", q, 1, ScalarType::Int);
  if (!(pages.size(0) == q.size(0) && lengths.size(0) == q.size(0)))
    fail(name, " and its lengths have ", pages.size(0), " and ", lengths.size(0), " sequences, not ", q.size(0));
  const int64_t each = pages.size(1), size = pool.size(1), most = pool.size(0) == 0 ? 0 : each * size;
  if (most > 1 << 30) fail(name, " has room for ", most, " tokens of a sequence, more than 2^30");
  const oscar_page_table table{pages.const_data_ptr<int32_t>(), lengths.const_data_ptr<int32_t>(),
                               static_cast<int32_t>(each), static_cast<int32_t>(size), static_cast<int32_t>(most)};
  for (int64_t b = 0; q.is_cpu() && b < q.size(0); ++b) {
    const int64_t length = table.lengths[b];
    if (length < 0 || length > most)
      fail(name, " has ", most, " tokens of a sequence at most, and a length is ", length);
    for (int64_t i = 0; i * size < length; ++i) {
      const int64_t page = table.pages[b * each + i];
      if (page < 0 || page >= pool.size(0)) fail(name, " has page ", page, " of ", pool.size(0));
    }
  }
  return table;
}

void check_slots(const Tensor& slots, int64_t end) {
  for (int64_t t = 0; slots.is_cpu() && t < slots.size(0); ++t) {
    const int64_t slot = slots.const_data_ptr<int32_t>()[t];
    if (slot >= end) fail("slots has ", slot, ", and there are ", end);
  }
}

}  // namespace oscar::operators
