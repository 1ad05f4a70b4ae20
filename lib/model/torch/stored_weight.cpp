// SPDX-License-Identifier: MIT
#include "model/torch/stored_weight.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/stack.h>

#include <array>

#include "base/errors.hpp"

namespace oscar {
namespace {

constexpr std::int64_t kBlock = 128;  // of float8 scales, in all checkpoints; the last may be cut off

/// Scales (out / height, in / width) side by side with the elements (rows, columns) that they belong to; those for a
/// whole row, or for all, are left for broadcasting.
at::Tensor spread(const at::Tensor& scale, std::int64_t rows, std::int64_t columns, const std::string& name) {
  if (scale.numel() == 1) return scale.reshape({1, 1});
  const std::int64_t scale_rows = scale.size(0), scale_columns = scale.numel() / scale_rows;
  at::Tensor out = scale.reshape({scale_rows, scale_columns});
  const auto spread_over = [&](std::int64_t dim, std::int64_t size) {
    const std::int64_t count = out.size(dim);
    if (count == 1 || count == size) return true;
    if (count != (size + kBlock - 1) / kBlock) return false;
    out = out.repeat_interleave(kBlock, dim).narrow(dim, 0, size);
    return true;
  };
  if (spread_over(0, rows) && spread_over(1, columns)) return out;
  throw DataError("the scales " + shape_text({{scale_rows, scale_columns}}) + " do not fit the float8 weight " +
                      shape_text({{rows, columns}}),
                  name, "use a checkpoint with blocks of 128 x 128, or with one scale a row or a matrix");
}

/// Blocks of 32 four-bit floats, low nibble first, times 2^(scale - 127): (out, in / 32, 16) bytes -> (out, in).
at::Tensor unpack_mxfp4(const at::Tensor& blocks, const at::Tensor& scales, at::ScalarType dtype) {
  static std::array<float, 16> values{0, .5F, 1, 1.5F, 2, 3, 4, 6, -0.F, -.5F, -1, -1.5F, -2, -3, -4, -6};
  const at::Tensor table = at::from_blob(values.data(), {16}, at::kFloat).to(blocks.device());
  const at::Tensor low = blocks.bitwise_and(15), high = blocks.bitwise_right_shift(4);
  const at::Tensor codes = at::stack({low, high}, -1).to(at::kInt);
  // An exponent becomes a float by taking its place in one.
  const at::Tensor factors = scales.to(at::kInt).bitwise_left_shift(23).view(at::kFloat).unsqueeze(-1);
  const at::Tensor floats = at::index_select(table, 0, codes.flatten()).view({scales.size(0), scales.size(1), 32});
  return (floats * factors).to(dtype).view({scales.size(0), scales.size(1) * 32});
}

}  // namespace

at::Tensor StoredWeight::unpack(at::ScalarType dtype) const {
  if (value.scalar_type() == at::kByte) return unpack_mxfp4(value, scale, dtype);
  const bool matrix = value.dim() >= 2 && value.size(0) > 1;
  if (value.scalar_type() != at::kFloat8_e4m3fn) return value.to(matrix ? dtype : at::kFloat);
  const std::int64_t rows = value.size(0), columns = value.numel() / rows;
  const at::Tensor floats = value.view({rows, columns}).to(at::kFloat);
  return (floats * spread(scale.to(at::kFloat), rows, columns, name)).to(dtype);
}

StoredWeight want_weight(Fetch& fetch, const WeightStore& store, const std::string& name) {
  StoredWeight weight{fetch.want(store.at(name)), {}, name};
  if (weight.value.scalar_type() != at::kFloat8_e4m3fn) return weight;
  // "…q_proj.weight" -> its scales: one for all, one per row, or one per block of rows and columns.
  weight.scale = fetch.want(store.at(store.contains(name + "_scale") ? name + "_scale" : name + "_scale_inv"));
  return weight;
}

StoredWeight want_slice(Fetch& fetch, const WeightStore& store, const std::string& name, int index) {
  return {fetch.want(slice(store.at(name), index)), {}, name};
}

StoredWeight want_mxfp4(Fetch& fetch, const WeightStore& store, const std::string& name, int index) {
  return {fetch.want(slice(store.at(name + "_blocks"), index)), fetch.want(slice(store.at(name + "_scales"), index)),
          name};
}

}  // namespace oscar
