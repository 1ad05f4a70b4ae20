// SPDX-License-Identifier: MIT
// torch.ops.oscar.int2_decode, int2_pack, int2_unpack and int2_decode_workspace (bytes that int2_decode needs):
// oscar/int2_attention.h for tensors. Here their schemas and shapes, in every build; int2_on_gpu.cpp computes. Sizes,
// strides and types come from the tensors; rows must be dense, everything else may be strided.
//   pools      (pages, page_size, num_kv_heads, width): codes uint8, width d / 4; windows bfloat16, width d;
//              params (pages, page_size, num_kv_heads, groups, 2) of scale and zero
//   page table (batch, pages_per_sequence) and lengths (batch), both int32
#include <optional>
#include <string>
#include <tuple>

#include "shapes.hpp"
#include "stable_torch.hpp"

namespace oscar::operators {
namespace {

std::tuple<Tensor, Tensor> decode_shapes(const Tensor& q, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                         const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                         const Tensor&, std::optional<double>, int64_t, const std::optional<Tensor>&) {
  return {empty_float_like(q), empty_float_like(torch::stable::select(q, 2, 0))};
}

void pack_shapes(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&,
                 const std::string&, double, const std::optional<Tensor>&) {}

void unpack_shapes(const Tensor&, const Tensor&, const Tensor&, const Tensor&) {}

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
  library.impl("int2_decode", TORCH_BOX(&decode_shapes));
  library.impl("int2_pack", TORCH_BOX(&pack_shapes));
  library.impl("int2_unpack", TORCH_BOX(&unpack_shapes));
}

}  // namespace oscar::operators
