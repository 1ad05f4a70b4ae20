// SPDX-License-Identifier: MIT
// torch.ops.oscar.rotate_rows: oscar/rotate_rows.h for tensors, products of rows of one layer by one launch. Here its
// schema, in every build; rotate_on_gpu.cpp computes.
//   x         1 to 4 of (tokens, heads, head_dim), bfloat16 or float32; rows are dense, the rest may be strided
//   matrices  for each x: bfloat16 (heads or a divisor of them, head_dim, head_dim), dense
//   means     for each x: float32 (heads or a divisor of them, head_dim), dense, or None
//   out       for each x: bfloat16 of its shape, to be written: bfloat16(bfloat16(x - mean) matrix), float32 sums
//   kept      for as many of the first x: bfloat16 (any number, heads, head_dim), written at the tokens' slots, too
//   slots     int32 (tokens), of all kept rows; negative: the token is not kept. None where nothing is kept
//   adds_mean out is bfloat16(bfloat16(x) matrix + mean)
#include <optional>
#include <vector>

#include "stable_torch.hpp"

namespace oscar::operators {
namespace {

using Tensors = std::vector<Tensor>;

void rotate_shapes(const Tensors&, const Tensors&, const std::vector<std::optional<Tensor>>&, const Tensors&,
                   const std::optional<Tensor>&, const Tensors&, bool) {}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(oscar, library) {
  library.def(
      "rotate_rows(Tensor[] x, Tensor[] matrices, Tensor?[] means, Tensor(a!)[] out, "
      "Tensor? slots, Tensor(b!)[] kept, *, bool adds_mean=False) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(oscar, Meta, library) { library.impl("rotate_rows", TORCH_BOX(&rotate_shapes)); }

}  // namespace oscar::operators
