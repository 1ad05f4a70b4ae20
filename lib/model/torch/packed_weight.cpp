// SPDX-License-Identifier: MIT
#include "model/torch/packed_weight.hpp"

#include <ATen/Context.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string_view>

namespace oscar {
namespace {

/// An operator that has no function of its own in libtorch's interface.
template <class Signature>
auto operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace

at::Tensor packed(const at::Tensor& weight) {
  const bool fits = weight.is_cpu() && weight.scalar_type() == at::kFloat && weight.dim() == 2 && weight.numel() > 0;
  if (!fits || !at::Context::hasMKLDNN()) return weight;
  static const auto pack =
      operator_named<at::Tensor(const at::Tensor&, std::optional<std::int64_t>)>("mkldnn::_reorder_linear_weight");
  return pack.call(weight.contiguous(), std::nullopt);
}

at::Tensor unpacked(const at::Tensor& weight) { return weight.is_mkldnn() ? weight.to_dense() : weight; }

at::Tensor packed_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                               c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
  static const auto multiply = operator_named<Signature>("mkldnn::_linear_pointwise");
  return multiply.call(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, "none",
                       c10::List<std::optional<at::Scalar>>(), "");
}

}  // namespace oscar
