// SPDX-License-Identifier: MIT
#include "model/torch/hidden_state.hpp"

#include <ATen/ops/cat.h>

namespace oscar {
namespace {

const MixerSpec& mixer_of(const ModelConfig& config, int layer) {
  return config.blocks[static_cast<std::size_t>(layer)].mixer;
}

}  // namespace

std::int64_t state_width(const ModelConfig& config) {
  std::int64_t width = config.hidden_size;
  for (const int layer : config.shared_layers()) {
    const MixerSpec& m = mixer_of(config, layer);
    width += std::int64_t{m.num_kv_heads} * (m.head_dim + m.value_dim);
  }
  return width;
}

at::Tensor packed_state(const ModelConfig& config, const HiddenRows& hidden) {
  std::vector<at::Tensor> parts{hidden.x};
  for (const int layer : config.shared_layers()) {
    const MixerSpec& m = mixer_of(config, layer);
    const auto kept = hidden.kept.find(layer);
    if (kept == hidden.kept.end()) {
      parts.push_back(
          hidden.x.new_zeros({hidden.x.size(0), std::int64_t{m.num_kv_heads} * (m.head_dim + m.value_dim)}));
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
    const MixerSpec& m = mixer_of(config, layer);
    const at::Tensor k = next(std::int64_t{m.num_kv_heads} * m.head_dim);
    const at::Tensor v = next(std::int64_t{m.num_kv_heads} * m.value_dim);
    hidden.kept[layer] = {
        {}, k.unflatten(1, {m.num_kv_heads, m.head_dim}), v.unflatten(1, {m.num_kv_heads, m.value_dim})};
  }
}

}  // namespace oscar
