// SPDX-License-Identifier: MIT
// torch.ops.oscar.int2_decode, int2_pack and int2_unpack (int2_ops.cpp) of CUDA tensors: oscar/int2_attention.h in
// torch's current stream. All can be captured in a CUDA graph. Errors: RuntimeError with the tensor's name.
#include <cmath>
#include <optional>
#include <string>
#include <tuple>

#include "gpu.hpp"
#include "gpu_tensors.hpp"

namespace oscar::operators {
namespace {

using torch::stable::accelerator::DeviceGuard;

oscar_paged_rows codes_of(const Tensor& codes, const char* name, const Tensor& like, int64_t heads, int64_t dim) {
  check_tensor(codes, name, like, 4, ScalarType::Byte);
  if (codes.size(3) * 4 != dim) fail(name, " has ", codes.size(3), " bytes a row, not ", dim / 4);
  return rows_of(codes, name, heads);
}

oscar_paged_rows params_of(const Tensor& params, const char* name, const Tensor& like, int64_t heads, ScalarType type) {
  check_tensor(params, name, like, 5, type);
  if (!(params.size(4) == 2 && params.stride(3) == 2)) fail(name, " must end with dense (groups, 2)");
  return rows_of(params, name, heads);
}

/// All but outputs and workspace. q bfloat16 (batch, num_q_heads, head_dim).
oscar_int2_decode_args decode_of(const Tensor& q, const Tensor& k_codes, const Tensor& v_codes, const Tensor& k_params,
                                 const Tensor& v_params, const Tensor& pages, const Tensor& lengths,
                                 const Tensor& k_window, const Tensor& v_window, const Tensor& window_pages,
                                 const Tensor& window_lengths, std::optional<double> softmax_scale,
                                 int64_t split_batch) {
  check_tensor(q, "q", q, 3, ScalarType::BFloat16);
  if (!q.is_contiguous()) fail("q is not contiguous");
  const int64_t dim = q.size(2);
  if (!(k_params.dim() == 5 && k_params.size(3) > 0)) fail("k_params must be (pages, page_size, heads, groups, 2)");
  const int64_t heads = k_params.size(2);
  check_tensor(k_window, "k_window", q, 4, ScalarType::BFloat16),
      check_tensor(v_window, "v_window", q, 4, ScalarType::BFloat16);
  if (!(k_window.size(3) == dim && v_window.size(3) == dim)) fail("rows of the window are not ", dim, " wide");
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
  return args;
}

int64_t bytes_of(const oscar_int2_decode_args& args) {
  const auto bytes = static_cast<int64_t>(oscar_int2_decode_workspace(&args));
  if (bytes <= 0) fail("int2_decode: ", oscar_int2_error());
  return bytes;
}

int64_t int2_decode_workspace(const Tensor& q, const Tensor& k_codes, const Tensor& v_codes, const Tensor& k_params,
                              const Tensor& v_params, const Tensor& pages, const Tensor& lengths,
                              const Tensor& k_window, const Tensor& v_window, const Tensor& window_pages,
                              const Tensor& window_lengths, std::optional<double> softmax_scale, int64_t split_batch) {
  return bytes_of(decode_of(q, k_codes, v_codes, k_params, v_params, pages, lengths, k_window, v_window, window_pages,
                            window_lengths, softmax_scale, split_batch));
}

/// out float32 (batch, num_q_heads, head_dim), lse float32 (batch, num_q_heads). workspace: bytes that were zeroed
/// once, reused by every call of one stream; without it each call allocates its own.
std::tuple<Tensor, Tensor> int2_decode(const Tensor& q, const Tensor& k_codes, const Tensor& v_codes,
                                       const Tensor& k_params, const Tensor& v_params, const Tensor& pages,
                                       const Tensor& lengths, const Tensor& k_window, const Tensor& v_window,
                                       const Tensor& window_pages, const Tensor& window_lengths,
                                       std::optional<double> softmax_scale, int64_t split_batch,
                                       const std::optional<Tensor>& workspace) {
  const DeviceGuard guard(q.get_device_index());
  oscar_int2_decode_args args = decode_of(q, k_codes, v_codes, k_params, v_params, pages, lengths, k_window, v_window,
                                          window_pages, window_lengths, softmax_scale, split_batch);
  const Tensor out = torch::stable::new_empty(q, q.sizes(), ScalarType::Float);
  const Tensor lse = torch::stable::new_empty(q, {q.size(0), q.size(1)}, ScalarType::Float);
  args.out = out.mutable_data_ptr<float>(), args.lse = lse.mutable_data_ptr<float>();
  const Tensor space = workspace ? *workspace : torch::stable::new_zeros(q, {bytes_of(args)}, ScalarType::Byte);
  check_tensor(space, "workspace", q, 1, ScalarType::Byte);
  args.workspace = space.data_ptr(), args.workspace_bytes = static_cast<std::size_t>(space.numel());
  check_status(oscar_int2_decode(&args, current_stream(q)), "int2_decode", oscar_int2_error);
  return {out, lse};
}

oscar_grid grid_of(const std::string& name) {
  if (name != "minmax" && name != "lsq") fail("grid is \"", name, "\", not \"minmax\" or \"lsq\"");
  return name == "lsq" ? OSCAR_LEAST_SQUARES : OSCAR_MIN_MAX;
}

/// x bfloat16 (tokens, num_kv_heads, head_dim); slots int32 (tokens): page * page_size + token, negative: not written;
/// rotation bfloat16 (head_dim, head_dim), or one for each head; clip_ranks int32 (num_kv_heads), in place of
/// clip_ratio.
void int2_pack(const Tensor& x, const Tensor& slots, const Tensor& codes, const Tensor& params,
               const std::optional<Tensor>& rotation, const std::string& grid, double clip_ratio,
               const std::optional<Tensor>& clip_ranks) {
  check_tensor(x, "x", x, 3, ScalarType::BFloat16);
  const DeviceGuard guard(x.get_device_index());
  check_tensor(slots, "slots", x, 1, ScalarType::Int);
  const int64_t tokens = x.size(0), heads = x.size(1), dim = x.size(2);
  if (slots.size(0) != tokens) fail("slots has ", slots.size(0), " entries, not ", tokens);
  if (!(params.dim() == 5 && params.size(3) > 0)) fail("params must be (pages, page_size, heads, groups, 2)");
  if (!(params.size(0) == codes.size(0) && params.size(1) == codes.size(1))) fail("params and codes differ in pages");
  oscar_int2_pack_args args{};
  args.num_tokens = static_cast<int32_t>(tokens), args.num_kv_heads = static_cast<int32_t>(heads);
  args.head_dim = static_cast<int32_t>(dim), args.group_size = static_cast<int32_t>(dim / params.size(3));
  args.param_dtype = dtype_of(params, "params"), args.grid = grid_of(grid), args.clip_ratio = clip_ratio;
  args.x = x.data_ptr(), args.x_token_stride = 2 * x.stride(0), args.x_head_stride = 2 * x.stride(1);
  if (rotation) {
    check_tensor(*rotation, "rotation", x, rotation->dim() == 2 ? 2 : 3, ScalarType::BFloat16);
    if (!(rotation->size(-1) == dim && rotation->size(-2) == dim && rotation->stride(-2) == dim))
      fail("rotation must be dense (", dim, ", ", dim, ")");
    if (!(rotation->dim() == 2 || rotation->size(0) == heads))
      fail("rotation has ", rotation->size(0), " heads, not ", heads);
    args.rotation = rotation->data_ptr(),
    args.rotation_head_stride = rotation->dim() == 2 ? 0 : 2 * rotation->stride(0);
  }
  if (clip_ranks) {
    check_tensor(*clip_ranks, "clip_ranks", x, 1, ScalarType::Int);
    if (clip_ranks->size(0) != heads) fail("clip_ranks has ", clip_ranks->size(0), " heads, not ", heads);
    args.clip_ranks = clip_ranks->const_data_ptr<int32_t>();
  }
  args.slots = slots.const_data_ptr<int32_t>(), args.page_size = static_cast<int32_t>(codes.size(1));
  args.codes = codes_of(codes, "codes", x, heads, dim);
  args.params = params_of(params, "params", x, heads, params.scalar_type());
  check_status(oscar_int2_pack(&args, current_stream(x)), "int2_pack", oscar_int2_error);
}

void int2_unpack(const Tensor& slots, const Tensor& codes, const Tensor& params, const Tensor& out) {
  check_tensor(slots, "slots", slots, 1, ScalarType::Int);
  const DeviceGuard guard(slots.get_device_index());
  check_tensor(out, "out", slots, 3, ScalarType::BFloat16);
  const int64_t heads = out.size(1), dim = out.size(2);
  if (!(params.dim() == 5 && params.size(3) > 0)) fail("params must be (pages, page_size, heads, groups, 2)");
  oscar_int2_unpack_args args{};
  args.num_tokens = static_cast<int32_t>(slots.size(0)), args.num_kv_heads = static_cast<int32_t>(heads);
  args.head_dim = static_cast<int32_t>(dim), args.group_size = static_cast<int32_t>(dim / params.size(3));
  args.param_dtype = dtype_of(params, "params");
  args.codes = codes_of(codes, "codes", slots, heads, dim);
  args.params = params_of(params, "params", slots, heads, params.scalar_type());
  if (!(codes.size(0) == params.size(0) && codes.size(1) == params.size(1))) fail("codes and params differ in pages");
  args.slots = slots.const_data_ptr<int32_t>(), args.page_size = static_cast<int32_t>(codes.size(1));
  args.out = target_of(out, "out", slots, heads, dim);
  if (args.num_tokens == 0) return;
  check_status(oscar_int2_unpack(&args, current_stream(slots)), "int2_unpack", oscar_int2_error);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(oscar, CUDA, library) {
  library.impl("int2_decode", TORCH_BOX(&int2_decode));
  library.impl("int2_decode_workspace", TORCH_BOX(&int2_decode_workspace));
  library.impl("int2_pack", TORCH_BOX(&int2_pack));
  library.impl("int2_unpack", TORCH_BOX(&int2_unpack));
}

}  // namespace oscar::operators
