// SPDX-License-Identifier: MIT
// torch.ops.oscar.coded_layout, coded_pack, coded_unpack, coded_decode and coded_decode_workspace (bytes that it
// needs): oscar/coded_pack.h and coded_attention.h for tensors. Here their schemas and shapes, in every build;
// coded_on_gpu.cpp computes.
//   format   on the CPU: bits uint8 (num_kv_heads, head_dim / 8), steps and sigmas float32 (num_kv_heads, head_dim)
//   layout   int64 (7) on the CPU, for coded_pack and coded_decode a list: head_dim, num_kv_heads, key operands, value
//            operands, planes, bytes of a token, bytes of the reader's tables
//   tables   uint8: the reader's, then the writer's; made on the CPU, used on the GPU
//   pages    uint8 (pages, page_size, bytes of a token): each page is dense, and its bytes are planes, not rows
//   k_norm_weight, norm_epsilon, positions, cos_sin, interleaved, k_finished: what oscar_norm_rope has. float32 or
//            bfloat16: k_norm_weight (head_dim), cos_sin (any number, rotary_dim). int32 or int64: positions (tokens).
//            bfloat16: k_finished (tokens, num_kv_heads, head_dim), to be written; it may be k itself
//   windows, page tables and lengths as for int2_decode
//   q        bfloat16 (batch, num_q_heads, head_dim), or (batch, 2 to 8 query tokens, num_q_heads, head_dim): the
//            newest tokens of a sequence, the last of its window, each of which sees those before it
#include <optional>
#include <tuple>
#include <vector>

#include "shapes.hpp"
#include "stable_torch.hpp"

namespace oscar::operators {
namespace {

using Layout = std::vector<int64_t>;

std::tuple<Tensor, Tensor> coded_decode_shapes(const Tensor& q, const Tensor&, const Layout&, const Tensor&,
                                               const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                               const Tensor&, const Tensor&, std::optional<double>, int64_t,
                                               const std::optional<Tensor>&) {
  return {empty_float_like(q), empty_float_like(torch::stable::select(q, -1, 0))};
}

void coded_pack_shapes(const Tensor&, const Tensor&, const Layout&, const Tensor&, const std::optional<Tensor>&,
                       const std::optional<Tensor>&, const std::optional<Tensor>&, const std::optional<Tensor>&,
                       const std::optional<Tensor>&, const std::optional<Tensor>&, const std::optional<Tensor>&, double,
                       const std::optional<Tensor>&, const std::optional<Tensor>&, bool, const std::optional<Tensor>&) {
}

void coded_unpack_shapes(const Tensor&, const Tensor&, const Layout&, const Tensor&, const std::optional<Tensor>&,
                         const std::optional<Tensor>&) {}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(oscar, library) {
  library.def(
      "coded_layout(Tensor k_bits, Tensor v_bits, Tensor k_steps, Tensor v_steps, Tensor k_sigmas, Tensor v_sigmas) -> "
      "(Tensor layout, Tensor tables)");
  library.def(
      "coded_pack(Tensor slots, Tensor(a!) pages, int[] layout, Tensor tables, *, Tensor? k=None, Tensor? v=None, "
      "Tensor? k_rotation=None, Tensor? v_rotation=None, Tensor? k_mean=None, Tensor? v_mean=None, "
      "Tensor? k_norm_weight=None, float norm_epsilon=0.0, Tensor? positions=None, Tensor? cos_sin=None, "
      "bool interleaved=False, Tensor(b!)? k_finished=None) -> ()");
  library.def(
      "coded_unpack(Tensor slots, Tensor pages, int[] layout, Tensor tables, *, Tensor(a!)? k=None, "
      "Tensor(b!)? v=None) -> ()");
  library.def(
      "coded_decode(Tensor q, Tensor pages, int[] layout, Tensor tables, Tensor page_table, Tensor lengths, "
      "Tensor k_window, Tensor v_window, Tensor window_pages, Tensor window_lengths, *, "
      "float? softmax_scale=None, int split_batch=0, Tensor(a!)? workspace=None) -> (Tensor out, Tensor lse)");
  library.def(
      "coded_decode_workspace(Tensor q, Tensor pages, int[] layout, Tensor tables, Tensor page_table, Tensor lengths, "
      "Tensor k_window, Tensor v_window, Tensor window_pages, Tensor window_lengths, *, "
      "float? softmax_scale=None, int split_batch=0) -> int");
}

STABLE_TORCH_LIBRARY_IMPL(oscar, Meta, library) {
  library.impl("coded_decode", TORCH_BOX(&coded_decode_shapes));
  library.impl("coded_unpack", TORCH_BOX(&coded_unpack_shapes));
  library.impl("coded_pack", TORCH_BOX(&coded_pack_shapes));
}

}  // namespace oscar::operators
