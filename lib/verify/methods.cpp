// SPDX-License-Identifier: MIT
#include "verify/methods.hpp"

#include <algorithm>
#include <iterator>

namespace oscar::verify {
namespace {

/// published_clip: the clip ratio of a set that does not say its own.
KvSide side_of(const RotationSet& set, const SideTransform& transform, RowCodec codec, double published_clip) {
  KvSide side;
  side.transform = std::make_shared<const Transform>(transform);
  codec.clip_ratio = set.has_clip_ratios ? transform.clip_ratio : published_clip;
  side.codec = {codec, transform.head_clip_ratios};
  return side;
}

std::string name_of_set(const RotationSet& set) {
  const std::string recipe = set.recipe.is_object() ? set.recipe.value("name", "") : "";
  const std::string name = recipe.empty() ? set.key_objective : recipe;
  return std::ranges::find(peers(), name, &Peer::name) == peers().end() ? name : name + " (this set)";
}

std::vector<std::string> names_of(const std::vector<std::string>& compare) {
  if (compare == std::vector<std::string>{"none"}) return {};
  return compare == std::vector<std::string>{"all"} ? method_names() : compare;
}

}  // namespace

KvMethod method_of_set(const RotationSet& set, Windows windows) {
  KvMethod method{name_of_set(set), MethodKind::kThis, windows, {}};
  method.description = "the set under test";
  for (const LayerRotation& layer : set.layers) {
    method.layers[layer.layer_id] = {layer.key.rotation.dim, side_of(set, layer.key, set.key_codec, kPublishedKeyClip),
                                     side_of(set, layer.value, set.value_codec, kPublishedValueClip), 1,
                                     layer.value.rotation.dim};
  }
  return method;
}

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  std::ranges::transform(peers(), std::back_inserter(names), &Peer::name);
  return names;
}

std::vector<KvMethod> methods_beside(KvMethod set, const VerifyOptions& options, const ModelIdentity& model,
                                     int group_size) {
  std::vector<LayerShape> shapes;
  for (const auto& [id, layer] : set.layers) {
    shapes.push_back({id, layer.head_dim, std::max(layer.num_kv_heads, model.num_key_value_heads), layer.value_dim});
  }
  const auto rope = model.rope_theta > 0 ? std::optional(Rope{model.rope_theta, 0}) : std::nullopt;
  std::vector<KvMethod> methods;
  for (const std::string& name : names_of(options.compare)) {
    const Windows windows = options.own_windows ? peer_named(name).windows : set.windows;
    methods.push_back(make_baseline(name, shapes, windows, group_size, rope));
  }
  methods.push_back(std::move(set));
  return methods;
}

void list_methods(VerifyReport& report, const std::vector<KvMethod>& methods) {
  constexpr std::int64_t kContext = 131072;  // tokens that bits per element are of
  for (const KvMethod& method : methods) {
    report.methods.push_back(
        {method.name, method.kind, method.description, method.windows, bits_per_element(method, kContext), {}, {}, {}});
  }
}

}  // namespace oscar::verify
