// SPDX-License-Identifier: MIT
#include "verify/methods.hpp"

#include <algorithm>

namespace oscar::verify {
namespace {

KvSide side_of(const SideTransform& transform, const RowCodec& codec, double clip_ratio) {
  KvSide side;
  side.transform = std::make_shared<const Transform>(transform);
  side.codec = codec;
  side.codec.clip_ratio = clip_ratio;
  return side;
}

std::string name_of_set(const RotationSet& set) {
  const std::string recipe = set.recipe.is_object() ? set.recipe.value("name", "") : "";
  const std::string name = recipe.empty() ? set.key_objective : recipe;
  const auto& taken = baseline_names();
  return std::find(taken.begin(), taken.end(), name) == taken.end() ? name : name + " (this set)";
}

KvMethod method_of_set(const RotationSet& set, Windows windows) {
  KvMethod method{name_of_set(set), MethodKind::kThis, windows, {}};
  for (const LayerRotation& layer : set.layers) {
    const double key_clip = set.has_clip_ratios ? layer.key.clip_ratio : kPublishedKeyClip;
    const double value_clip = set.has_clip_ratios ? layer.value.clip_ratio : kPublishedValueClip;
    method.layers[layer.layer_id] = {layer.key.rotation.dim, side_of(layer.key, set.key_codec, key_clip),
                                     side_of(layer.value, set.value_codec, value_clip)};
  }
  return method;
}

}  // namespace

std::vector<KvMethod> methods_for(const Subject& subject, const std::vector<std::string>& compare, Windows windows) {
  std::vector<LayerShape> shapes;
  for (const LayerRotation& layer : subject.set.layers) shapes.push_back({layer.layer_id, layer.key.rotation.dim});
  std::vector<std::string> names = compare;
  if (compare == std::vector<std::string>{"all"}) names = baseline_names();
  if (compare == std::vector<std::string>{"none"}) names.clear();
  std::vector<KvMethod> methods;
  for (const std::string& name : names) {
    methods.push_back(make_baseline(name, shapes, windows, subject.set.key_codec.group_size));
  }
  methods.push_back(method_of_set(subject.set, windows));
  return methods;
}

}  // namespace oscar::verify
