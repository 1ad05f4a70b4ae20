// SPDX-License-Identifier: MIT
// torch.ops.oscar.coded_layout of tensors of the CPU, and coded_pack, coded_unpack and coded_decode (coded_ops.cpp) of
// CUDA tensors, in torch's current stream. All but the first can be captured in a CUDA graph. Errors: RuntimeError with
// the tensor's name.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include "gpu.hpp"
#include "gpu_tensors.hpp"
#include "oscar/coded_pack.h"

namespace oscar::operators {
namespace {

using torch::stable::accelerator::DeviceGuard;
constexpr int64_t kLayoutNumbers = 7;

void check_format(const Tensor& x, const char* name, const Tensor& bits, int64_t width, ScalarType type) {
  check_tensor(x, name, bits, 2, type);
  if (!x.is_contiguous()) fail(name, " is not contiguous");
  if (!(x.size(0) == bits.size(0) && x.size(1) == width))
    fail(name, " is ", shape_of(x), ", not [", bits.size(0), ", ", width, "]");
}

/// See coded_ops.cpp.
std::tuple<Tensor, Tensor> coded_layout(const Tensor& k_bits, const Tensor& v_bits, const Tensor& k_steps,
                                        const Tensor& v_steps, const Tensor& k_sigmas, const Tensor& v_sigmas) {
  check_tensor(k_bits, "k_bits", k_bits, 2, ScalarType::Byte);
  const int64_t heads = k_bits.size(0), blocks = k_bits.size(1);
  check_format(k_bits, "k_bits", k_bits, blocks, ScalarType::Byte),
      check_format(v_bits, "v_bits", k_bits, blocks, ScalarType::Byte);
  check_format(k_steps, "k_steps", k_bits, 8 * blocks, ScalarType::Float),
      check_format(v_steps, "v_steps", k_bits, 8 * blocks, ScalarType::Float);
  check_format(k_sigmas, "k_sigmas", k_bits, 8 * blocks, ScalarType::Float),
      check_format(v_sigmas, "v_sigmas", k_bits, 8 * blocks, ScalarType::Float);
  const oscar_coded_format format{static_cast<int32_t>(8 * blocks), static_cast<int32_t>(heads),
                                  k_bits.const_data_ptr<uint8_t>(), v_bits.const_data_ptr<uint8_t>(),
                                  k_steps.const_data_ptr<float>(),  v_steps.const_data_ptr<float>()};
  const auto *const ks = k_sigmas.const_data_ptr<float>(), *const vs = v_sigmas.const_data_ptr<float>();
  oscar_coded_layout layout{};
  int64_t write_bytes = 0;
  check_status(oscar_coded_layout_of(&format, &layout, nullptr), "coded_layout", oscar_int2_error);
  check_status(oscar_coded_pack_table_of(&format, ks, vs, &write_bytes, nullptr), "coded_layout", oscar_int2_error);
  const Tensor tables = torch::stable::new_empty(k_bits, {layout.table_bytes + write_bytes}, ScalarType::Byte);
  auto* const to = tables.mutable_data_ptr<uint8_t>();
  check_status(oscar_coded_layout_of(&format, &layout, to), "coded_layout", oscar_int2_error);
  check_status(oscar_coded_pack_table_of(&format, ks, vs, &write_bytes, to + layout.table_bytes), "coded_layout",
               oscar_int2_error);
  const Tensor numbers = torch::stable::new_empty(k_bits, {kLayoutNumbers}, ScalarType::Long);
  const int64_t values[kLayoutNumbers] = {layout.head_dim,       layout.num_kv_heads, layout.key_operands,
                                          layout.value_operands, layout.planes,       layout.token_bytes,
                                          layout.table_bytes};
  std::memcpy(numbers.mutable_data_ptr<int64_t>(), values, sizeof values);
  return {numbers, tables};
}

oscar_coded_layout layout_of(const std::vector<int64_t>& numbers, const Tensor& tables, const Tensor& like) {
  if (numbers.size() != kLayoutNumbers) fail("layout has ", numbers.size(), " numbers; give what coded_layout made");
  check_tensor(tables, "tables", like, 1, ScalarType::Byte);
  oscar_coded_layout layout{static_cast<int32_t>(numbers[0]),
                            static_cast<int32_t>(numbers[1]),
                            static_cast<int32_t>(numbers[2]),
                            static_cast<int32_t>(numbers[3]),
                            static_cast<int32_t>(numbers[4]),
                            numbers[5],
                            numbers[6],
                            tables.data_ptr()};
  if (!(layout.table_bytes > 0 && layout.table_bytes < tables.numel()))
    fail("tables has ", tables.numel(), " bytes, and the layout is not theirs; give what coded_layout made");
  return layout;
}

void check_pages(const Tensor& pages, const Tensor& like, const oscar_coded_layout& layout) {
  check_tensor(pages, "pages", like, 3, ScalarType::Byte);
  if (!(pages.size(2) == layout.token_bytes && pages.stride(1) == layout.token_bytes))
    fail("pages must be (pages, page_size, ", layout.token_bytes, ") with dense pages");
}

/// x (tokens, num_kv_heads, head_dim); rotation (head_dim, head_dim) or one for each head; mean float32 (1 or heads,
/// head_dim).
oscar_coded_rows side_of(const std::optional<Tensor>& x, const std::optional<Tensor>& rotation,
                         const std::optional<Tensor>& mean, const char* name, const Tensor& slots,
                         const oscar_coded_layout& layout) {
  oscar_coded_rows rows{};
  if (!x) return rows;
  const int64_t heads = layout.num_kv_heads, dim = layout.head_dim;
  check_tensor(*x, name, slots, 3, ScalarType::BFloat16);
  if (!(x->size(0) == slots.size(0) && x->size(1) == heads && x->size(2) == dim))
    fail(name, " is ", shape_of(*x), ", not [", slots.size(0), ", ", heads, ", ", dim, "]");
  rows.x = x->data_ptr(), rows.x_token_stride = 2 * x->stride(0), rows.x_head_stride = 2 * x->stride(1);
  if (rotation) {
    check_tensor(*rotation, "rotation", slots, rotation->dim() == 2 ? 2 : 3, ScalarType::BFloat16);
    if (!(rotation->size(-1) == dim && rotation->size(-2) == dim && rotation->stride(-2) == dim))
      fail("the rotation of ", name, " must be dense (", dim, ", ", dim, ")");
    const bool one = rotation->dim() == 2 || rotation->size(0) == 1;
    if (!(one || rotation->size(0) == heads))
      fail("the rotation of ", name, " has ", rotation->size(0), " heads, not ", heads);
    rows.rotation = rotation->data_ptr(), rows.rotation_head_stride = one ? 0 : 2 * rotation->stride(0);
  }
  if (mean) {
    check_tensor(*mean, "mean", slots, 2, ScalarType::Float);
    if (!(mean->size(1) == dim && (mean->size(0) == 1 || mean->size(0) == heads)))
      fail("the mean of ", name, " is ", shape_of(*mean), ", not [", heads, ", ", dim, "]");
    rows.mean = mean->const_data_ptr<float>(), rows.mean_head_stride = mean->size(0) == 1 ? 0 : 4 * mean->stride(0);
  }
  return rows;
}

/// See coded_ops.cpp.
oscar_norm_rope norm_rope_of(const std::optional<Tensor>& weight, double epsilon,
                             const std::optional<Tensor>& positions, const std::optional<Tensor>& cos_sin,
                             bool interleaved, const std::optional<Tensor>& finished, const Tensor& slots,
                             const oscar_coded_layout& layout) {
  oscar_norm_rope out{};
  if (weight) {
    check_tensor(*weight, "k_norm_weight", slots, 1, weight->scalar_type());
    if (weight->size(0) != layout.head_dim)
      fail("k_norm_weight has ", weight->size(0), " channels, not ", layout.head_dim);
    out.norm_weight = weight->data_ptr(), out.norm_dtype = dtype_of(*weight, "k_norm_weight");
    out.norm_epsilon = static_cast<float>(epsilon);
  }
  if (positions.has_value() != cos_sin.has_value()) fail("positions and cos_sin must be given together");
  if (interleaved && !cos_sin) fail("interleaved pairs need cos_sin");
  if (cos_sin) {
    check_tensor(*cos_sin, "cos_sin", slots, 2, cos_sin->scalar_type());
    if (!cos_sin->is_contiguous()) fail("cos_sin is not contiguous");
    const bool is_long = positions->scalar_type() == ScalarType::Long;
    check_tensor(*positions, "positions", slots, 1, is_long ? ScalarType::Long : ScalarType::Int);
    if (positions->size(0) != slots.size(0)) fail("positions has ", positions->size(0), " tokens, not ", slots.size(0));
    out.cos_sin = cos_sin->data_ptr(), out.cos_sin_dtype = dtype_of(*cos_sin, "cos_sin");
    out.rotary_dim = static_cast<int32_t>(cos_sin->size(1)), out.interleaved = interleaved ? 1 : 0;
    out.positions = positions->data_ptr(), out.position_bytes = is_long ? 8 : 4;
  }
  if (finished) out.rows = target_of(*finished, "k_finished", slots, layout.num_kv_heads, layout.head_dim);
  return out;
}

void coded_pack(const Tensor& slots, const Tensor& pages, const std::vector<int64_t>& numbers, const Tensor& tables,
                const std::optional<Tensor>& k, const std::optional<Tensor>& v, const std::optional<Tensor>& k_rotation,
                const std::optional<Tensor>& v_rotation, const std::optional<Tensor>& k_mean,
                const std::optional<Tensor>& v_mean, const std::optional<Tensor>& k_norm_weight, double norm_epsilon,
                const std::optional<Tensor>& positions, const std::optional<Tensor>& cos_sin, bool interleaved,
                const std::optional<Tensor>& k_finished) {
  check_tensor(slots, "slots", slots, 1, ScalarType::Int);
  const DeviceGuard guard(slots.get_device_index());
  const oscar_coded_layout layout = layout_of(numbers, tables, slots);
  check_pages(pages, slots, layout);
  oscar_coded_pack_args args{};
  args.head_dim = layout.head_dim, args.num_kv_heads = layout.num_kv_heads, args.token_bytes = layout.token_bytes;
  args.table = static_cast<const unsigned char*>(layout.table) + layout.table_bytes;
  args.num_tokens = static_cast<int32_t>(slots.size(0)), args.slots = slots.const_data_ptr<int32_t>();
  args.k = side_of(k, k_rotation, k_mean, "k", slots, layout),
  args.v = side_of(v, v_rotation, v_mean, "v", slots, layout);
  args.norm_rope =
      norm_rope_of(k_norm_weight, norm_epsilon, positions, cos_sin, interleaved, k_finished, slots, layout);
  args.page_size = static_cast<int32_t>(pages.size(1)), args.pages = pages.data_ptr(),
  args.page_stride = pages.stride(0);
  if (args.num_tokens == 0) return;
  check_status(oscar_coded_pack(&args, current_stream(slots)), "coded_pack", oscar_int2_error);
}

void coded_unpack(const Tensor& slots, const Tensor& pages, const std::vector<int64_t>& numbers, const Tensor& tables,
                  const std::optional<Tensor>& k, const std::optional<Tensor>& v) {
  check_tensor(slots, "slots", slots, 1, ScalarType::Int);
  const DeviceGuard guard(slots.get_device_index());
  const oscar_coded_layout layout = layout_of(numbers, tables, slots);
  check_pages(pages, slots, layout);
  oscar_coded_unpack_args args{};
  args.head_dim = layout.head_dim, args.num_kv_heads = layout.num_kv_heads, args.token_bytes = layout.token_bytes;
  args.table = static_cast<const unsigned char*>(layout.table) + layout.table_bytes;
  args.num_tokens = static_cast<int32_t>(slots.size(0)), args.slots = slots.const_data_ptr<int32_t>();
  args.page_size = static_cast<int32_t>(pages.size(1)), args.pages = pages.data_ptr(),
  args.page_stride = pages.stride(0);
  if (k) args.k = target_of(*k, "k", slots, layout.num_kv_heads, layout.head_dim);
  if (v) args.v = target_of(*v, "v", slots, layout.num_kv_heads, layout.head_dim);
  if (args.num_tokens == 0) return;
  check_status(oscar_coded_unpack(&args, current_stream(slots)), "coded_unpack", oscar_int2_error);
}

struct CodedDecode {
  oscar_coded_decode_args args{};
  int32_t tokens = 1;
};

/// All but outputs and workspace. q bfloat16 (batch, num_q_heads, head_dim), or with several query tokens
/// (batch, query tokens, num_q_heads, head_dim).
CodedDecode decode_of(const Tensor& q, const Tensor& pages, const std::vector<int64_t>& numbers, const Tensor& tables,
                      const Tensor& page_table, const Tensor& lengths, const Tensor& k_window, const Tensor& v_window,
                      const Tensor& window_pages, const Tensor& window_lengths, std::optional<double> softmax_scale,
                      int64_t split_batch) {
  check_tensor(q, "q", q, q.dim() == 4 ? 4 : 3, ScalarType::BFloat16);
  if (!q.is_contiguous()) fail("q is not contiguous");
  CodedDecode decode;
  oscar_coded_decode_args& args = decode.args;
  args.layout = layout_of(numbers, tables, q);
  const int64_t dim = q.size(-1), heads = args.layout.num_kv_heads;
  if (dim != args.layout.head_dim) fail("q has ", dim, " channels a head, not ", args.layout.head_dim);
  check_pages(pages, q, args.layout);
  check_tensor(k_window, "k_window", q, 4, ScalarType::BFloat16),
      check_tensor(v_window, "v_window", q, 4, ScalarType::BFloat16);
  if (!(k_window.size(3) == dim && v_window.size(3) == dim)) fail("rows of the window are not ", dim, " wide");
  if (q.dim() == 4) decode.tokens = static_cast<int32_t>(q.size(1));
  args.batch = static_cast<int32_t>(q.size(0)), args.num_q_heads = static_cast<int32_t>(q.size(-2));
  args.softmax_scale = static_cast<float>(softmax_scale.value_or(1 / std::sqrt(static_cast<double>(dim))));
  args.split_batch = static_cast<int32_t>(split_batch), args.q = q.data_ptr();
  args.pages = pages.data_ptr(), args.page_stride = pages.stride(0);
  args.history = table_of(page_table, "page_table", lengths, q, pages);
  args.k_window = rows_of(k_window, "k_window", heads), args.v_window = rows_of(v_window, "v_window", heads);
  args.window = table_of(window_pages, "window_pages", window_lengths, q, k_window);
  return decode;
}

int64_t bytes_of(const CodedDecode& decode) {
  const auto bytes = static_cast<int64_t>(oscar_coded_decode_tokens_workspace(&decode.args, decode.tokens));
  if (bytes <= 0) fail("coded_decode: ", oscar_int2_error());
  return bytes;
}

int64_t coded_decode_workspace(const Tensor& q, const Tensor& pages, const std::vector<int64_t>& numbers,
                               const Tensor& tables, const Tensor& page_table, const Tensor& lengths,
                               const Tensor& k_window, const Tensor& v_window, const Tensor& window_pages,
                               const Tensor& window_lengths, std::optional<double> softmax_scale, int64_t split_batch) {
  const DeviceGuard guard(q.get_device_index());
  return bytes_of(decode_of(q, pages, numbers, tables, page_table, lengths, k_window, v_window, window_pages,
                            window_lengths, softmax_scale, split_batch));
}

/// out float32 of q's shape, lse float32 without the last dimension. workspace: as int2_decode's.
std::tuple<Tensor, Tensor> coded_decode(const Tensor& q, const Tensor& pages, const std::vector<int64_t>& numbers,
                                        const Tensor& tables, const Tensor& page_table, const Tensor& lengths,
                                        const Tensor& k_window, const Tensor& v_window, const Tensor& window_pages,
                                        const Tensor& window_lengths, std::optional<double> softmax_scale,
                                        int64_t split_batch, const std::optional<Tensor>& workspace) {
  const DeviceGuard guard(q.get_device_index());
  CodedDecode decode = decode_of(q, pages, numbers, tables, page_table, lengths, k_window, v_window, window_pages,
                                 window_lengths, softmax_scale, split_batch);
  const Tensor out = torch::stable::new_empty(q, q.sizes(), ScalarType::Float);
  const auto sizes = q.sizes();
  const Tensor lse = torch::stable::new_empty(q, {sizes.data(), sizes.size() - 1}, ScalarType::Float);
  decode.args.out = out.mutable_data_ptr<float>(), decode.args.lse = lse.mutable_data_ptr<float>();
  const Tensor space = workspace ? *workspace : torch::stable::new_zeros(q, {bytes_of(decode)}, ScalarType::Byte);
  check_tensor(space, "workspace", q, 1, ScalarType::Byte);
  decode.args.workspace = space.data_ptr(), decode.args.workspace_bytes = static_cast<std::size_t>(space.numel());
  check_status(oscar_coded_decode_tokens(&decode.args, decode.tokens, current_stream(q)), "coded_decode",
               oscar_int2_error);
  return {out, lse};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(oscar, CPU, library) { library.impl("coded_layout", TORCH_BOX(&coded_layout)); }

STABLE_TORCH_LIBRARY_IMPL(oscar, CUDA, library) {
  library.impl("coded_pack", TORCH_BOX(&coded_pack));
  library.impl("coded_unpack", TORCH_BOX(&coded_unpack));
  library.impl("coded_decode", TORCH_BOX(&coded_decode));
  library.impl("coded_decode_workspace", TORCH_BOX(&coded_decode_workspace));
}

}  // namespace oscar::operators
