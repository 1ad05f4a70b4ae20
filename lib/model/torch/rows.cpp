// SPDX-License-Identifier: MIT
#include "model/torch/rows.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>

#include <array>

namespace oscar {
namespace {

/// Channels of the keys and values that a layer keeps.
std::int64_t cache_width(const MixerSpec& m) { return std::int64_t{m.num_kv_heads} * (m.head_dim + m.value_dim); }

}  // namespace

std::int64_t state_width(const ModelConfig& config) {
  std::int64_t width = config.hidden_size;
  for (const int layer : config.shared_layers()) width += cache_width(config.block(layer).mixer);
  return width;
}

at::Tensor packed_state(const ModelConfig& config, const HiddenRows& hidden) {
  std::vector<at::Tensor> parts{hidden.x};
  for (const int layer : config.shared_layers()) {
    const auto kept = hidden.kept.find(layer);
    if (kept == hidden.kept.end()) {
      parts.push_back(hidden.x.new_zeros({hidden.x.size(0), cache_width(config.block(layer).mixer)}));
      continue;
    }
    for (const at::Tensor& rows : {kept->second.k, kept->second.v}) parts.push_back(rows.flatten(1));
  }
  return parts.size() == 1 ? hidden.x : at::cat(parts, 1);
}

void unpack_state(const ModelConfig& config, const at::Tensor& state, HiddenRows& hidden) {
  std::int64_t begin = 0;
  const auto next = [&](std::int64_t width) {
    begin += width;
    return state.narrow(1, begin - width, width).contiguous();
  };
  hidden.x = next(config.hidden_size);
  for (const int layer : config.shared_layers()) {
    const MixerSpec& m = config.block(layer).mixer;
    const at::Tensor k = next(std::int64_t{m.num_kv_heads} * m.head_dim);
    const at::Tensor v = next(std::int64_t{m.num_kv_heads} * m.value_dim);
    hidden.kept[layer] = {
        {}, k.unflatten(1, {m.num_kv_heads, m.head_dim}), v.unflatten(1, {m.num_kv_heads, m.value_dim})};
  }
}

void start_copy(const Device& device, QkvRows& rows, const QkvBuffers& out) {
  const at::ScalarType type = scalar_type(out.dtype);
  rows.converted = {rows.qkv.q.to(type), rows.qkv.k.to(type), rows.qkv.v.to(type)};
  const auto finite = [](const at::Tensor& x) { return at::isfinite(x).all(); };
  rows.finite = at::stack({finite(rows.converted.q), finite(rows.converted.k), finite(rows.converted.v)});
  const auto copy_to = [](const at::Tensor& from, std::byte* to) {
    at::from_blob(to, from.sizes(), from.scalar_type()).copy_(from.contiguous(), /*non_blocking=*/true);
  };
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
