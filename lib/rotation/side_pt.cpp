// SPDX-License-Identifier: MIT
#include "rotation/side_pt.hpp"

#include <algorithm>

#include "rotation/manifest.hpp"
#include "rotation/rotation_pt.hpp"

namespace oscar {
namespace {

PtValue clip_ratios_of(const RotationSet& set, SideOfLayer side) {
  PtDict ratios;
  for (const LayerRotation& layer : set.layers) {
    const SideTransform& own = layer.*side;
    std::vector<double> values = own.head_clip_ratios;
    if (values.empty()) values = {own.clip_ratio};
    const auto count = static_cast<std::int64_t>(values.size());
    ratios.push_back({{std::int64_t{layer.layer_id}}, {Tensor::from({count}, std::span<const double>(values))}});
  }
  return {std::move(ratios)};
}

}  // namespace

PtValue side_pt(const RotationSet& set, SideOfLayer side, int version, const std::string& where) {
  std::vector<std::pair<int, const SideTransform*>> layers;
  for (const LayerRotation& layer : set.layers) layers.emplace_back(layer.layer_id, &(layer.*side));
  const auto text = [](const char* name, std::string value) { return PtItem{{std::string(name)}, {std::move(value)}}; };
  const auto number = [](const char* name, std::int64_t value) { return PtItem{{std::string(name)}, {value}}; };
  const PtDict transform{text("recipe", recipe_of(set)["name"]),
                         text("codec", std::string(name_of(set.key_codec.grid))),
                         number("key_levels", set.key_codec.levels),
                         number("value_levels", set.value_codec.levels),
                         number("group_size", set.key_codec.group_size),
                         text("scale_dtype", std::string(name_of(set.key_codec.scale_dtype)))};
  PtDict calibration{text("model_path", set.model.id),
                     text("model_revision", set.model.revision),
                     text("prompt_sha256", set.calibration.data_sha256),
                     number("tokens", set.calibration.tokens),
                     number("global_kv_heads", set.model.num_key_value_heads),
                     number("global_q_heads", set.model.num_attention_heads)};
  const bool key = side == &LayerRotation::key;
  if (set.has_clip_ratios) {
    calibration.push_back({{std::string("clip_ratio")}, clip_ratios_of(set, side)});
    calibration.push_back({{std::string("clip_scalar")}, {key ? set.key_clip_scalar : set.value_clip_scalar}});
  }
  return rotation_pt(key ? set.key_objective : set.value_objective, layers, version,
                     {key ? "q_rotation" : "o_rotation", set.model.num_key_value_heads, transform, calibration}, where);
}

PtValue key_means_pt(const RotationSet& set) {
  PtDict layers;
  for (const LayerRotation& layer : set.layers) {
    std::vector<float> mean(layer.key.mean.begin(), layer.key.mean.end());
    const std::int64_t dim = layer.key.rotation.dim;
    if (mean.empty()) mean.resize(static_cast<std::size_t>(dim));
    const std::vector<float> first = mean;
    const auto heads =
        std::max<std::int64_t>(static_cast<std::int64_t>(mean.size()) / dim, set.model.num_key_value_heads);
    while (static_cast<std::int64_t>(mean.size()) < heads * dim) mean.insert(mean.end(), first.begin(), first.end());
    layers.push_back({{std::int64_t{layer.layer_id}},
                      {PtDict{{{std::string("mu")}, {Tensor::from({heads, dim}, std::span<const float>(mean))}}}}});
  }
  return {PtDict{{{std::string("layers")}, {std::move(layers)}}}};
}

PtValue latent_pt(const LayerRotation& layer) {
  const SideTransform& latent = layer.key;
  if (latent.read_rotation.count == 0 && latent.mean.empty()) return {latent.rotation.to_f32(true)};
  PtDict entry{{{std::string("rotation")}, {latent.rotation.to_f32(true)}}};
  if (latent.read_rotation.count > 0)
    entry.push_back({{std::string("q_rotation")}, {latent.read_rotation.to_f32(true)}});
  if (!latent.mean.empty()) {
    const std::vector<float> mean(latent.mean.begin(), latent.mean.end());
    entry.push_back({{std::string("mean")}, {Tensor::from({static_cast<std::int64_t>(mean.size())}, std::span(mean))}});
  }
  return {std::move(entry)};
}

}  // namespace oscar
