// SPDX-License-Identifier: MIT
#include <bit>
#include <cmath>

#include "base/errors.hpp"
#include "codec/kv_method.hpp"

namespace oscar {
MatrixStack hadamard_baseline_matrix(int dim) {
  MatrixStack stack(1, dim);
  const auto size = static_cast<unsigned>(dim);
  const unsigned block = size & (~size + 1U);  // the largest power of two that divides dim
  const double entry = 1 / std::sqrt(static_cast<double>(block));
  for (unsigned i = 0; i < size; ++i) {
    for (unsigned j = i / block * block; j < (i / block + 1) * block; ++j) {
      const bool negative = (std::popcount((i % block) & (j % block)) & 1) != 0;
      stack.data[static_cast<std::size_t>(i) * size + j] = negative ? -entry : entry;
    }
  }
  return stack;
}

const std::vector<std::string>& baseline_names() {
  static const std::vector<std::string> names{"bf16", "naive", "hadamard", "hadamard_clip"};
  return names;
}

KvMethod make_baseline(const std::string& name, const std::vector<LayerShape>& layers, Windows windows,
                       int group_size) {
  const bool rotated = name == "hadamard" || name == "hadamard_clip";
  if (!rotated && name != "bf16" && name != "naive") {
    std::string known;
    for (const std::string& each : baseline_names()) known += (known.empty() ? "" : ", ") + each;
    throw UsageError("unknown method \"" + name + "\"", "--compare", "choose from " + known + "; or all, or none");
  }
  KvMethod method{name, name == "bf16" ? MethodKind::kExact : MethodKind::kBaseline, windows, {}};
  std::map<int, std::shared_ptr<const Transform>> rotations;
  for (const LayerShape& shape : layers) {
    KvSide side;
    side.quantized = name != "bf16";
    side.codec.group_size = group_size;
    if (rotated) {
      auto& rotation = rotations[shape.head_dim];
      if (!rotation)
        rotation = std::make_shared<const Transform>(Transform{hadamard_baseline_matrix(shape.head_dim), {}, {}});
      side.transform = rotation;
    }
    KvLayer layer{shape.head_dim, side, side};
    if (name == "hadamard_clip") {
      layer.key.codec.clip_ratio = kPublishedKeyClip;
      layer.value.codec.clip_ratio = kPublishedValueClip;
    }
    method.layers[shape.layer_id] = layer;
  }
  return method;
}

}  // namespace oscar
