// SPDX-License-Identifier: MIT
#include "measure/set_method.hpp"

#include <algorithm>
#include <memory>

#include "measure/peers/baselines.hpp"

namespace oscar {
namespace {

/// published_clip: the clip ratio of a set that does not say its own.
KvSide side_of(const RotationPart& set, const SideTransform& transform, RowCodec codec, double published_clip) {
  KvSide side;
  side.transform = std::make_shared<const Transform>(transform);
  codec.clip_ratio = set.has_clip_ratios ? transform.clip_ratio : published_clip;
  side.codec = {codec, transform.head_clip_ratios};
  return side;
}

std::string name_of_set(const RotationPart& set) {
  const std::string recipe = set.recipe.is_object() ? set.recipe.value("name", "") : "";
  const std::string name = recipe.empty() ? set.key_objective : recipe;
  return std::ranges::find(peers(), name, &Peer::name) == peers().end() ? name : name + " (this set)";
}

KvSide kv_side(const CodedSide& side) {
  KvSide kv;
  kv.transform = std::make_shared<const Transform>(side.transform);
  kv.codec.coded = std::make_shared<const std::vector<CodedFormat>>(side.formats);
  return kv;
}

}  // namespace

KvMethod method_of(const RotationPart& set, Windows windows) {
  KvMethod method{name_of_set(set), MethodKind::kThis, windows, {}};
  method.description = "the set under test";
  for (const LayerRotation& layer : set.layers) {
    method.layers[layer.layer_id] = {layer.key.rotation.dim, side_of(set, layer.key, set.key_codec, kPublishedKeyClip),
                                     side_of(set, layer.value, set.value_codec, kPublishedValueClip), 1,
                                     layer.value.rotation.dim};
  }
  return method;
}

KvMethod method_of(const CodedPart& set, Windows windows) {
  KvMethod method{"coded", MethodKind::kThis, windows, {}};
  method.description = "the set under test";
  for (const CodedLayer& layer : set.layers) {
    method.layers[layer.layer_id] = {layer.key.transform.rotation.dim, kv_side(layer.key), kv_side(layer.value),
                                     static_cast<int>(layer.key.formats.size()), layer.value.transform.rotation.dim};
  }
  return method;
}

}  // namespace oscar
