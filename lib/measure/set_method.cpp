// SPDX-License-Identifier: MIT
#include "measure/set_method.hpp"

#include <memory>

#include "set/set.hpp"

namespace oscar {
namespace {

/// published_clip: the clip ratio of rotations that do not say their own.
KvSide side_of(const RotationPart& part, const SideTransform& transform, RowCodec codec, double published_clip) {
  KvSide side;
  side.transform = std::make_shared<const Transform>(transform);
  codec.clip_ratio = part.has_clip_ratios ? transform.clip_ratio : published_clip;
  side.codec = {codec, transform.head_clip_ratios};
  return side;
}

KvSide kv_side(const CodedSide& side) {
  KvSide kv;
  kv.transform = std::make_shared<const Transform>(side.transform);
  kv.codec.coded = std::make_shared<const std::vector<CodedFormat>>(side.formats);
  return kv;
}

}  // namespace

KvMethod method_of(const RotationPart& part, Windows windows) {
  KvMethod method{kRotationsName, MethodKind::kThis, windows, {}};
  method.description = "rotations of the set under test";
  for (const LayerRotation& layer : part.layers) {
    method.layers[layer.layer_id] = {
        layer.key.rotation.dim, side_of(part, layer.key, part.key_codec, kPublishedKeyClip),
        side_of(part, layer.value, part.value_codec, kPublishedValueClip), 1, layer.value.rotation.dim};
  }
  return method;
}

KvMethod method_of(const CodedPart& part, Windows windows) {
  KvMethod method{kCodedName, MethodKind::kThis, windows, {}};
  method.description = "the coded cache of the set under test";
  for (const CodedLayer& layer : part.layers) {
    method.layers[layer.layer_id] = {layer.key.transform.rotation.dim, kv_side(layer.key), kv_side(layer.value),
                                     static_cast<int>(layer.key.formats.size()), layer.value.transform.rotation.dim};
  }
  return method;
}

}  // namespace oscar
