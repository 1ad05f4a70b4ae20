// SPDX-License-Identifier: MIT
#include "verify/methods.hpp"

#include <algorithm>
#include <set>

#include "base/errors.hpp"

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
  const auto& taken = baseline_names();
  return std::find(taken.begin(), taken.end(), name) == taken.end() ? name : name + " (this set)";
}

/// "int3", "int4": the rotations of the set with more levels. Clip ratios are fitted for four levels: none here.
KvMethod with_more_bits(KvMethod method, int bits) {
  method.name = "int" + std::to_string(bits);
  method.kind = MethodKind::kBaseline;
  method.description = "this set's rotations, INT" + std::to_string(bits) + ", not clipped";
  for (auto& [id, layer] : method.layers) {
    for (HistoryCodec* codec : {&layer.key.codec, &layer.value.codec}) {
      codec->levels = 1 << bits;
      codec->clip_ratio = 0;
      codec->head_clip_ratios.clear();
    }
  }
  return method;
}

/// "bisect": the set with the clip thresholds that decode kernels find; prefill kernels sort.
KvMethod with_decode_clip(KvMethod method) {
  method.name = "bisect";
  method.kind = MethodKind::kBaseline;
  method.description = "this set, clip thresholds by bisection as decode kernels find them";
  for (auto& [id, layer] : method.layers) {
    layer.key.codec.clip_search = layer.value.codec.clip_search = ClipSearch::kBisect;
  }
  return method;
}

/// What people would otherwise pick: the former baselines, what engines offer, and 2-bit methods at no more bits, or as
/// published.
const std::vector<std::string> kUsual{
    "bf16",     "naive", "hadamard",     "hadamard_clip", "saw_int4", "turboquant_k3v3", "kivi_g128", "kitty",
    "rotatekv", "occam", "optr_centred", "kvquant_nuq2",  "skvq",     "q4_0_rot",        "fp8",       "nvfp4"};

std::vector<std::string> names_of(const Comparison& comparison) {
  const auto is = [&](const char* name) { return comparison.names == std::vector<std::string>{name}; };
  if (is("none")) return {};
  return is("all") ? kUsual : is("every") ? method_names() : comparison.names;
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
  std::vector<std::string> names = baseline_names();
  names.insert(names.end(), {"int3", "int4", "bisect"});
  return names;
}

std::vector<KvMethod> methods_beside(KvMethod set, const Comparison& comparison, const ModelIdentity& model) {
  std::vector<LayerShape> shapes;
  for (const auto& [id, layer] : set.layers)
    shapes.push_back({id, layer.head_dim, layer.num_kv_heads, layer.value_dim});
  const auto rope = model.rope_theta > 0 ? std::optional(Rope{model.rope_theta, 0}) : std::nullopt;
  std::vector<KvMethod> methods;
  for (const std::string& name : names_of(comparison)) {
    if (name == "bisect") continue;  // is about clip ratios, which only rotations have
    const bool more = name == "int3" || name == "int4";
    const std::string base = more ? "hadamard" : name;
    KvMethod method = make_baseline(base, shapes, comparison.own_windows ? own_windows(base) : set.windows, 0, rope);
    if (more) {
      method = with_more_bits(std::move(method), name == "int3" ? 3 : 4);
      method.description = "Hadamard rotations, INT" + name.substr(3);
    }
    methods.push_back(std::move(method));
  }
  methods.push_back(std::move(set));
  return methods;
}

std::vector<KvMethod> methods_for(const Subject& subject, const Comparison& comparison, Windows windows,
                                  const ModelIdentity& model) {
  std::vector<LayerShape> shapes;
  const auto &keys = subject.sides[0].layers, &values = subject.sides[1].layers;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    shapes.push_back({keys[i].first, keys[i].second.rotation.dim, std::max(1, model.num_key_value_heads),
                      values[i].second.rotation.dim});
  }
  const auto rope = model.rope_theta > 0 ? std::optional(Rope{model.rope_theta, 0}) : std::nullopt;
  const KvMethod set = method_of_set(set_of(subject), windows);
  const auto named = [&](const std::string& name) {
    if (name == "int3" || name == "int4") return with_more_bits(set, name == "int3" ? 3 : 4);
    if (name == "bisect") return with_decode_clip(set);
    const Windows theirs = comparison.own_windows ? own_windows(name) : windows;
    return make_baseline(name, shapes, theirs, subject.set.key_codec.group_size, rope);
  };
  std::vector<KvMethod> methods;
  for (const std::string& name : names_of(comparison)) methods.push_back(named(name));
  methods.push_back(set);
  return methods;
}

std::vector<int> bf16_layer_ids(const KvMethod& set, const std::vector<int>& layers) {
  if (layers.empty()) return {};
  std::vector<int> ids;
  for (const auto& [id, layer] : set.layers) ids.push_back(id);
  const auto count = static_cast<int>(ids.size());
  std::set<int> kept;
  for (const int layer : layers) {
    const bool known = layer < 0 ? layer >= -count : std::ranges::find(ids, layer) != ids.end();
    if (!known) {
      throw UsageError("the set has no layer " + std::to_string(layer), "--bf16-layers",
                       "name layers from " + std::to_string(ids.front()) + " to " + std::to_string(ids.back()) +
                           " that it has, or count from its last layer with -1 to " + std::to_string(-count));
    }
    kept.insert(layer < 0 ? ids[static_cast<std::size_t>(count + layer)] : layer);
  }
  if (kept.size() == ids.size()) {
    throw UsageError("every layer of the set would stay in bfloat16", "--bf16-layers",
                     "leave a layer that is quantised");
  }
  return {kept.begin(), kept.end()};
}

std::vector<KvMethod> with_bf16_layers(std::vector<KvMethod> methods, const std::vector<int>& ids) {
  for (KvMethod& method : methods) {
    for (const int id : ids) {
      const auto found = method.layers.find(id);
      if (found != method.layers.end()) found->second.key.quantized = found->second.value.quantized = false;
    }
  }
  return methods;
}

void warn_of_bf16_layers(VerifyReport& report) {
  if (report.bf16_layers.empty()) return;
  std::string ids;
  for (const int id : report.bf16_layers) ids += (ids.empty() ? "" : ", ") + std::to_string(id);
  report.warnings.push_back("every method keeps layers in bfloat16, as asked: " + ids);
}

}  // namespace oscar::verify
