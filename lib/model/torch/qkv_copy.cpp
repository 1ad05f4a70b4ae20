// SPDX-License-Identifier: MIT
#include "model/torch/qkv_copy.hpp"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>

#include <array>

namespace oscar {
namespace {

void copy_to(const at::Tensor& from, std::byte* to) {
  at::from_blob(to, from.sizes(), from.scalar_type()).copy_(from.contiguous(), /*non_blocking=*/true);
}

}  // namespace

void start_copy(const Device& device, QkvRows& rows, const QkvBuffers& out) {
  const at::ScalarType type = scalar_type(out.dtype);
  rows.converted = {rows.qkv.q.to(type), rows.qkv.k.to(type), rows.qkv.v.to(type)};
  const auto finite = [](const at::Tensor& x) { return at::isfinite(x).all(); };
  rows.finite = at::stack({finite(rows.converted.q), finite(rows.converted.k), finite(rows.converted.v)});
  const SideStream side(device, device.copying_stream());
  copy_to(rows.converted.q, out.q);
  copy_to(rows.converted.k, out.k);
  copy_to(rows.converted.v, out.v);
  rows.finite_on_host = device.host_bytes(rows.finite.numel()).view(at::kBool);
  rows.finite_on_host.copy_(rows.finite, /*non_blocking=*/true);
  rows.copied = side.mark();
}

std::string finish_copy(QkvRows& rows) {
  if (rows.copied) rows.copied->synchronize();
  rows.converted = {};
  constexpr std::array<const char*, 3> kNames{"q", "k", "v"};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (!rows.finite_on_host.data_ptr<bool>()[i]) return kNames[i];
  }
  return "";
}

}  // namespace oscar
