// SPDX-License-Identifier: MIT
// torch.ops.oscar.int2_decode, int2_pack, int2_unpack and int2_decode_workspace (bytes that int2_decode needs on CUDA):
// oscar/int2_attention.h for tensors. All can be captured in a CUDA graph. Sizes, strides and types come from the
// tensors; rows must be dense, everything else may be strided.
//   q          bfloat16 (batch, num_q_heads, head_dim), dense
//   pools      (pages, page_size, num_kv_heads, width): codes uint8, width d / 4; windows bfloat16, width d;
//              params (pages, page_size, num_kv_heads, groups, 2) of scale and zero
//   page table (batch, pages_per_sequence) and lengths (batch), both int32
//   x          bfloat16 (tokens, num_kv_heads, head_dim)
//   slots      int32 (tokens): page * page_size + token, negative: not written
//   rotation   bfloat16 (head_dim, head_dim), or one for each head
//   grid       "minmax", or on the CPU "lloyd-max"; clip_ranks: int32 (num_kv_heads), in place of clip_ratio
#include <string>

#include "on_cpu.hpp"
#include "tensors.hpp"

namespace oscar::operators {
namespace {

/// Channels that share a scale, by params (pages, page_size, heads, groups, 2).
int32_t group_size_of(const Tensor& params, int64_t dim) {
  if (!(params.dim() == 5 && params.size(3) > 0)) fail("params must be (pages, page_size, heads, groups, 2)");
  if (dim % params.size(3) != 0 || dim % 4 != 0) fail("params have ", params.size(3), " groups for ", dim, " channels");
  return static_cast<int32_t>(dim / params.size(3));
}

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

/// Fills what the arguments of int2_pack and int2_unpack have in common: rows (tokens, heads, head_dim) and pools.
template <class Args>
void fill_pools(Args& args, const Tensor& rows, const Tensor& slots, const Tensor& codes, const Tensor& params) {
  const int64_t heads = rows.size(1), dim = rows.size(2);
  args.num_tokens = static_cast<int32_t>(slots.size(0)), args.num_kv_heads = static_cast<int32_t>(heads);
  args.head_dim = static_cast<int32_t>(dim), args.group_size = group_size_of(params, dim);
  if (!(params.size(0) == codes.size(0) && params.size(1) == codes.size(1))) fail("params and codes differ in pages");
  args.param_dtype = dtype_of(params, "params");
  args.codes = codes_of(codes, "codes", slots, heads, dim);
  args.params = params_of(params, "params", slots, heads, params.scalar_type());
  args.slots = slots.const_data_ptr<int32_t>(), args.page_size = static_cast<int32_t>(codes.size(1));
}

struct Int2Decode {
  static constexpr const char* kName = "int2_decode";
  oscar_int2_decode_args args{};
  [[nodiscard]] std::size_t workspace_bytes() const { return oscar_int2_decode_workspace(&args); }
  [[nodiscard]] int on_gpu(void* stream) const { return oscar_int2_decode(&args, stream); }
  void on_cpu() const { on_cpu::int2_decode(args); }
};

Int2Decode int2_decode_of(const Tensor& q, const Tensor& k_codes, const Tensor& v_codes, const Tensor& k_params,
                          const Tensor& v_params, const Tensor& pages, const Tensor& lengths, const Tensor& k_window,
                          const Tensor& v_window, const Tensor& window_pages, const Tensor& window_lengths,
                          std::optional<double> softmax_scale, int64_t split_batch) {
  check_tensor(q, "q", q, 3, ScalarType::BFloat16);
  if (!q.is_contiguous()) fail("q is not contiguous");
  const int64_t dim = q.size(2);
  Int2Decode decode;
  oscar_int2_decode_args& args = decode.args;
  args.group_size = group_size_of(k_params, dim), args.param_dtype = dtype_of(k_params, "k_params");
  const int64_t heads = k_params.size(2);
  args.num_kv_heads = static_cast<int32_t>(heads), args.head_dim = static_cast<int32_t>(dim);
  args.k_codes = codes_of(k_codes, "k_codes", q, heads, dim),
  args.v_codes = codes_of(v_codes, "v_codes", q, heads, dim);
  args.k_params = params_of(k_params, "k_params", q, heads, k_params.scalar_type());
  args.v_params = params_of(v_params, "v_params", q, heads, k_params.scalar_type());
  if (v_params.size(3) != k_params.size(3))
    fail("v_params has ", v_params.size(3), " groups, k_params ", k_params.size(3));
  fill_decode(args, q, heads, k_codes.size(1), "pages",
              {pages, lengths, k_window, v_window, window_pages, window_lengths}, softmax_scale, split_batch);
  return decode;
}

void int2_pack(const Tensor& x, const Tensor& slots, const Tensor& codes, const Tensor& params,
               const std::optional<Tensor>& rotation, const std::string& grid_name, double clip_ratio,
               const std::optional<Tensor>& clip_ranks) {
  check_tensor(x, "x", x, 3, ScalarType::BFloat16);
  check_tensor(slots, "slots", x, 1, ScalarType::Int);
  const int64_t heads = x.size(1), dim = x.size(2);
  if (slots.size(0) != x.size(0)) fail("slots has ", slots.size(0), " entries, not ", x.size(0));
  oscar_int2_pack_args args{};
  fill_pools(args, x, slots, codes, params);
  const Grid grid = grid_name == "lloyd-max" ? Grid::kLloydMax : Grid::kMinMax;
  if (grid_name != name_of(grid)) fail("grid is \"", grid_name, "\", not \"minmax\" or \"lloyd-max\"");
  if (grid != Grid::kMinMax && !x.is_cpu()) fail("rows of lloyd-max are packed on the CPU");
  args.clip_ratio = clip_ratio;
  if (clip_ratio > 1) fail("int2_pack: clip_ratio must be at most 1");
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
  compute(
      x, "int2_pack", [&](void* stream) { return oscar_int2_pack(&args, stream); },
      [&] { on_cpu::int2_pack(args, grid); });
}

/// The rows of the slots of the pools, written to out: bfloat16 (tokens, num_kv_heads, head_dim).
void int2_unpack(const Tensor& slots, const Tensor& codes, const Tensor& params, const Tensor& out) {
  check_tensor(slots, "slots", slots, 1, ScalarType::Int);
  check_tensor(out, "out", slots, 3, ScalarType::BFloat16);
  oscar_int2_unpack_args args{};
  fill_pools(args, out, slots, codes, params);
  args.out = target_of(out, "out", slots, args.num_kv_heads, args.head_dim);
  if (args.num_tokens == 0) return;
  compute(
      slots, "int2_unpack", [&](void* stream) { return oscar_int2_unpack(&args, stream); },
      [&] { on_cpu::int2_unpack(args); });
}

using Int2Decoding = Decode<&int2_decode_of>;

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(oscar, library) {
  library.def(
      "int2_decode(Tensor q, Tensor k_codes, Tensor v_codes, Tensor k_params, Tensor v_params, Tensor pages, "
      "Tensor lengths, Tensor k_window, Tensor v_window, Tensor window_pages, Tensor window_lengths, *, "
      "float? softmax_scale=None, int split_batch=0, Tensor(a!)? workspace=None) -> (Tensor out, Tensor lse)");
  library.def(
      "int2_decode_workspace(Tensor q, Tensor k_codes, Tensor v_codes, Tensor k_params, Tensor v_params, Tensor pages, "
      "Tensor lengths, Tensor k_window, Tensor v_window, Tensor window_pages, Tensor window_lengths, *, "
      "float? softmax_scale=None, int split_batch=0) -> int");
  library.def(
      "int2_pack(Tensor x, Tensor slots, Tensor(a!) codes, Tensor(b!) params, *, Tensor? rotation=None, "
      "str grid=\"minmax\", float clip_ratio=0.0, Tensor? clip_ranks=None) -> ()");
  library.def("int2_unpack(Tensor slots, Tensor codes, Tensor params, Tensor(a!) out) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(oscar, Meta, library) {
  library.impl("int2_decode", TORCH_BOX(&Int2Decoding::shapes));
  library.impl("int2_pack", TORCH_BOX(&Nothing<&int2_pack>::run));
  library.impl("int2_unpack", TORCH_BOX(&Nothing<&int2_unpack>::run));
}

STABLE_TORCH_LIBRARY_IMPL(oscar, CPU, library) {
  library.impl("int2_decode", TORCH_BOX(&Int2Decoding::run));
  library.impl("int2_pack", TORCH_BOX(&int2_pack));
  library.impl("int2_unpack", TORCH_BOX(&int2_unpack));
}

#ifdef OSCAR_HAS_CUDA
STABLE_TORCH_LIBRARY_IMPL(oscar, CUDA, library) {
  library.impl("int2_decode", TORCH_BOX(&Int2Decoding::run));
  library.impl("int2_decode_workspace", TORCH_BOX(&Int2Decoding::workspace));
  library.impl("int2_pack", TORCH_BOX(&int2_pack));
  library.impl("int2_unpack", TORCH_BOX(&int2_unpack));
}
#endif

}  // namespace oscar::operators
