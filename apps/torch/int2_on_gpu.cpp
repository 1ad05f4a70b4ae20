// SPDX-License-Identifier: MIT
// torch.ops.oscar.int2_decode and int2_pack (int2_ops.cpp) of CUDA tensors: oscar/int2_attention.h in torch's current
// stream. Both can be captured in a CUDA graph. Errors: RuntimeError with the tensor's name.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cmath>
#include <string>
#include <tuple>

#include "oscar/int2_attention.h"

namespace {

using at::Tensor;

void check(const Tensor& x, const char* name, const Tensor& like, int64_t dims, at::ScalarType type) {
  TORCH_CHECK(x.device() == like.device(), name, " is on ", x.device(), ", not on ", like.device());
  TORCH_CHECK(x.dim() == dims, name, " has ", x.dim(), " dimensions, not ", dims);
  TORCH_CHECK(x.scalar_type() == type, name, " is ", x.scalar_type(), ", not ", type);
  TORCH_CHECK(x.numel() == 0 || x.stride(-1) == 1, name, "'s rows are not dense");
}

/// A pool whose rows are `width` elements, as the C interface sees it.
oscar_paged_rows rows_of(const Tensor& pool, const char* name, int64_t heads) {
  TORCH_CHECK(pool.size(2) == heads, name, " has ", pool.size(2), " KV heads, not ", heads);
  const auto bytes = static_cast<int64_t>(pool.element_size());
  return {pool.data_ptr(), pool.stride(0) * bytes, pool.stride(1) * bytes, pool.stride(2) * bytes};
}

oscar_paged_rows codes_of(const Tensor& codes, const char* name, const Tensor& like, int64_t heads, int64_t dim) {
  check(codes, name, like, 4, at::kByte);
  TORCH_CHECK(codes.size(3) * 4 == dim, name, " has ", codes.size(3), " bytes a row, not ", dim / 4);
  return rows_of(codes, name, heads);
}

oscar_paged_rows params_of(const Tensor& params, const char* name, const Tensor& like, int64_t heads,
                           at::ScalarType type) {
  check(params, name, like, 5, type);
  TORCH_CHECK(params.size(4) == 2 && params.stride(3) == 2, name, " must end with dense (groups, 2)");
  return rows_of(params, name, heads);
}

oscar_dtype dtype_of(const Tensor& params, const char* name) {
  switch (params.scalar_type()) {
    case at::kFloat:
      return OSCAR_FLOAT32;
    case at::kHalf:
      return OSCAR_FLOAT16;
    case at::kBFloat16:
      return OSCAR_BFLOAT16;
    default:
      TORCH_CHECK(false, name, " is ", params.scalar_type(), ", not float32, float16 or bfloat16");
  }
}

oscar_page_table table_of(const Tensor& pages, const char* name, const Tensor& lengths, const Tensor& q,
                          const Tensor& pool) {
  check(pages, name, q, 2, at::kInt);
  TORCH_CHECK(pages.is_contiguous(), name, " is not contiguous");
  check(lengths, "lengths", q, 1, at::kInt);
  TORCH_CHECK(pages.size(0) == q.size(0) && lengths.size(0) == q.size(0), name, " and its lengths have ", pages.size(0),
              " and ", lengths.size(0), " sequences, not ", q.size(0));
  const auto per_sequence = static_cast<int32_t>(pages.size(1)), page_size = static_cast<int32_t>(pool.size(1));
  return {pages.data_ptr<int32_t>(), lengths.data_ptr<int32_t>(), per_sequence, page_size, per_sequence * page_size};
}

void check_status(int status, const char* name) {
  TORCH_CHECK(status != cudaErrorInvalidValue, name, ": ", oscar_int2_error());
  TORCH_CHECK(status == cudaSuccess, name, ": ", cudaGetErrorString(static_cast<cudaError_t>(status)));
}

/// out float32 (batch, num_q_heads, head_dim), lse float32 (batch, num_q_heads). q bfloat16 (batch, num_q_heads,
/// head_dim). workspace: bytes that were zeroed once, reused by every call of one stream; without it each call
/// allocates its own.
std::tuple<Tensor, Tensor> int2_decode(const Tensor& q, const Tensor& k_codes, const Tensor& v_codes,
                                       const Tensor& k_params, const Tensor& v_params, const Tensor& pages,
                                       const Tensor& lengths, const Tensor& k_window, const Tensor& v_window,
                                       const Tensor& window_pages, const Tensor& window_lengths,
                                       std::optional<double> softmax_scale, int64_t split_batch,
                                       const std::optional<Tensor>& workspace) {
  check(q, "q", q, 3, at::kBFloat16);
  TORCH_CHECK(q.is_contiguous(), "q is not contiguous");
  const c10::cuda::CUDAGuard guard(q.device());
  const int64_t dim = q.size(2);
  TORCH_CHECK(k_params.dim() == 5 && k_params.size(3) > 0, "k_params must be (pages, page_size, heads, groups, 2)");
  const int64_t heads = k_params.size(2);
  check(k_window, "k_window", q, 4, at::kBFloat16), check(v_window, "v_window", q, 4, at::kBFloat16);
  TORCH_CHECK(k_window.size(3) == dim && v_window.size(3) == dim, "rows of the window are not ", dim, " wide");
  Tensor out = at::empty(q.sizes(), q.options().dtype(at::kFloat));
  Tensor lse = at::empty({q.size(0), q.size(1)}, out.options());
  oscar_int2_decode_args args{};
  args.batch = static_cast<int32_t>(q.size(0)), args.num_q_heads = static_cast<int32_t>(q.size(1));
  args.num_kv_heads = static_cast<int32_t>(heads), args.head_dim = static_cast<int32_t>(dim);
  args.group_size = static_cast<int32_t>(dim / k_params.size(3)), args.param_dtype = dtype_of(k_params, "k_params");
  args.softmax_scale = static_cast<float>(softmax_scale.value_or(1 / std::sqrt(static_cast<double>(dim))));
  args.split_batch = static_cast<int32_t>(split_batch), args.q = q.data_ptr();
  args.k_codes = codes_of(k_codes, "k_codes", q, heads, dim),
  args.v_codes = codes_of(v_codes, "v_codes", q, heads, dim);
  args.k_params = params_of(k_params, "k_params", q, heads, k_params.scalar_type());
  args.v_params = params_of(v_params, "v_params", q, heads, k_params.scalar_type());
  args.history = table_of(pages, "pages", lengths, q, k_codes);
  args.k_window = rows_of(k_window, "k_window", heads), args.v_window = rows_of(v_window, "v_window", heads);
  args.window = table_of(window_pages, "window_pages", window_lengths, q, k_window);
  args.out = out.data_ptr<float>(), args.lse = lse.data_ptr<float>();
  const auto bytes = static_cast<int64_t>(oscar_int2_decode_workspace(&args));
  TORCH_CHECK(bytes > 0, "int2_decode: ", oscar_int2_error());
  const Tensor space = workspace ? *workspace : at::zeros({bytes}, q.options().dtype(at::kByte));
  check(space, "workspace", q, 1, at::kByte);
  args.workspace = space.data_ptr(), args.workspace_bytes = static_cast<std::size_t>(space.numel());
  check_status(oscar_int2_decode(&args, c10::cuda::getCurrentCUDAStream().stream()), "int2_decode");
  return {out, lse};
}

oscar_grid grid_of(const std::string& name) {
  TORCH_CHECK(name == "minmax" || name == "lsq", "grid is \"", name, "\", not \"minmax\" or \"lsq\"");
  return name == "lsq" ? OSCAR_LEAST_SQUARES : OSCAR_MIN_MAX;
}

/// x bfloat16 (tokens, num_kv_heads, head_dim); slots int32 (tokens): page * page_size + token, negative: not written;
/// rotation bfloat16 (head_dim, head_dim), or one for each head.
void int2_pack(const Tensor& x, const Tensor& slots, Tensor& codes, Tensor& params,
               const std::optional<Tensor>& rotation, const std::string& grid, double clip_ratio) {
  check(x, "x", x, 3, at::kBFloat16);
  const c10::cuda::CUDAGuard guard(x.device());
  check(slots, "slots", x, 1, at::kInt);
  const int64_t tokens = x.size(0), heads = x.size(1), dim = x.size(2);
  TORCH_CHECK(slots.size(0) == tokens, "slots has ", slots.size(0), " entries, not ", tokens);
  TORCH_CHECK(params.dim() == 5 && params.size(3) > 0, "params must be (pages, page_size, heads, groups, 2)");
  TORCH_CHECK(params.size(0) == codes.size(0) && params.size(1) == codes.size(1), "params and codes differ in pages");
  oscar_int2_pack_args args{};
  args.num_tokens = static_cast<int32_t>(tokens), args.num_kv_heads = static_cast<int32_t>(heads);
  args.head_dim = static_cast<int32_t>(dim), args.group_size = static_cast<int32_t>(dim / params.size(3));
  args.param_dtype = dtype_of(params, "params"), args.grid = grid_of(grid), args.clip_ratio = clip_ratio;
  args.x = x.data_ptr(), args.x_token_stride = 2 * x.stride(0), args.x_head_stride = 2 * x.stride(1);
  if (rotation) {
    check(*rotation, "rotation", x, rotation->dim() == 2 ? 2 : 3, at::kBFloat16);
    TORCH_CHECK(rotation->size(-1) == dim && rotation->size(-2) == dim && rotation->stride(-2) == dim,
                "rotation must be dense (", dim, ", ", dim, ")");
    TORCH_CHECK(rotation->dim() == 2 || rotation->size(0) == heads, "rotation has ", rotation->size(0), " heads, not ",
                heads);
    args.rotation = rotation->data_ptr(),
    args.rotation_head_stride = rotation->dim() == 2 ? 0 : 2 * rotation->stride(0);
  }
  args.slots = slots.data_ptr<int32_t>(), args.page_size = static_cast<int32_t>(codes.size(1));
  args.codes = codes_of(codes, "codes", x, heads, dim);
  args.params = params_of(params, "params", x, heads, params.scalar_type());
  check_status(oscar_int2_pack(&args, c10::cuda::getCurrentCUDAStream().stream()), "int2_pack");
}

}  // namespace

TORCH_LIBRARY_IMPL(oscar, CUDA, library) {
  library.impl("int2_decode", int2_decode);
  library.impl("int2_pack", int2_pack);
}
