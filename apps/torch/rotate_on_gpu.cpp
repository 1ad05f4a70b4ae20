// SPDX-License-Identifier: MIT
// torch.ops.oscar.rotate_rows (rotate_ops.cpp) of CUDA tensors, in torch's current stream. It can be captured in a CUDA
// graph. Errors: RuntimeError with the tensor's name.
#include <array>
#include <optional>
#include <vector>

#include "gpu.hpp"
#include "gpu_tensors.hpp"
#include "oscar/rotate_rows.h"

namespace oscar::operators {
namespace {

using torch::stable::accelerator::DeviceGuard;
using Tensors = std::vector<Tensor>;

/// x (tokens, heads, head_dim) times its matrices, to `out`.
oscar_row_product product_of(const Tensor& x, const Tensor& matrices, const std::optional<Tensor>& means,
                             const Tensor& out, bool adds_mean, const Tensor& like) {
  const bool is_float = x.scalar_type() == ScalarType::Float;
  check_tensor(x, "x", like, 3, is_float ? ScalarType::Float : ScalarType::BFloat16);
  const int64_t heads = x.size(1), dim = x.size(2), size = is_float ? 4 : 2;
  check_tensor(matrices, "matrices", like, 3, ScalarType::BFloat16);
  if (!(matrices.is_contiguous() && matrices.size(1) == dim && matrices.size(2) == dim))
    fail("matrices are ", shape_of(matrices), ", not dense [any, ", dim, ", ", dim, "]");
  oscar_row_product product{};
  product.num_tokens = static_cast<int32_t>(x.size(0)), product.num_heads = static_cast<int32_t>(heads);
  product.num_matrices = static_cast<int32_t>(matrices.size(0)), product.matrices = matrices.data_ptr();
  product.x = x.data_ptr(), product.x_dtype = is_float ? OSCAR_FLOAT32 : OSCAR_BFLOAT16;
  product.x_token_stride = size * x.stride(0), product.x_head_stride = size * x.stride(1);
  if (means) {
    check_tensor(*means, "means", like, 2, ScalarType::Float);
    if (!(means->is_contiguous() && means->size(1) == dim))
      fail("means are ", shape_of(*means), ", not dense [any, ", dim, "]");
    product.num_means = static_cast<int32_t>(means->size(0)), product.means = means->const_data_ptr<float>();
    product.adds_mean = adds_mean ? 1 : 0;
  }
  product.out = target_of(out, "out", x, heads, dim);
  return product;
}

void rotate_rows(const Tensors& x, const Tensors& matrices, const std::vector<std::optional<Tensor>>& means,
                 const Tensors& out, const std::optional<Tensor>& slots, const Tensors& kept, bool adds_mean) {
  const std::size_t count = x.size();
  if (count < 1 || count > OSCAR_MOST_PRODUCTS) fail("there are ", count, " x, not 1 to ", OSCAR_MOST_PRODUCTS);
  if (!(matrices.size() == count && means.size() == count && out.size() == count))
    fail(count, " x have ", matrices.size(), " matrices, ", means.size(), " means and ", out.size(), " out");
  if (kept.size() > count || slots.has_value() == kept.empty())
    fail("kept rows need slots, and no more of them than x");
  const DeviceGuard guard(x[0].get_device_index());
  std::array<oscar_row_product, OSCAR_MOST_PRODUCTS> products{};
  for (std::size_t i = 0; i < count; ++i) {
    products[i] = product_of(x[i], matrices[i], means[i], out[i], adds_mean, x[0]);
    if (x[i].size(2) != x[0].size(2)) fail("x have ", x[i].size(2), " and ", x[0].size(2), " channels");
    if (i >= kept.size()) continue;
    check_tensor(*slots, "slots", x[0], 1, ScalarType::Int);
    if (slots->size(0) != x[i].size(0)) fail("slots has ", slots->size(0), " entries, not ", x[i].size(0));
    check_tensor(kept[i], "kept", x[0], 3, ScalarType::BFloat16);
    if (!(kept[i].size(1) == x[i].size(1) && kept[i].size(2) == x[i].size(2)))
      fail("kept is ", shape_of(kept[i]), ", and x ", shape_of(x[i]));
    products[i].kept = {kept[i].data_ptr(), 2 * kept[i].stride(0), 2 * kept[i].stride(1)};
    products[i].slots = slots->const_data_ptr<int32_t>();
  }
  check_status(oscar_rotate_rows(products.data(), static_cast<int32_t>(count), static_cast<int32_t>(x[0].size(2)),
                                 current_stream(x[0])),
               "rotate_rows", oscar_int2_error);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(oscar, CUDA, library) { library.impl("rotate_rows", TORCH_BOX(&rotate_rows)); }

}  // namespace oscar::operators
