// SPDX-License-Identifier: MIT
// Rotation files as the published tooling writes and servers read them:
//   {format_version: 1, objective: str, source_grouping: "layer", layers: {int: {layer_id, rotation f32 [d, d],
//   eigenvalues f32 [d]}}}
// Version 2 has rotation [Hkv, d, d] and source_grouping "head". Version 3 adds, where they are not trivial, the read
// side (q_rotation of keys, o_rotation of values, shaped as rotation) and k_mean ([Hkv, d], or [d] for all heads).
#include "rotation/rotation_pt.hpp"

#include <algorithm>
#include <charconv>

#include "base/errors.hpp"

namespace oscar {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& where) {
  throw DataError(what, where, "check that this is a rotation file; \"oscar inspect\" says what it is");
}

template <class T>
const T& member(const PtValue& dict, const char* name, const std::string& where) {
  const PtValue* value = dict.find(std::string(name));
  if (value == nullptr || value->get_if<T>() == nullptr) fail(std::string("no member \"") + name + "\"", where);
  return *value->get_if<T>();
}

int layer_id_of(const PtValue& key, const std::string& where) {
  if (const auto* number = key.get_if<std::int64_t>(); number != nullptr && *number >= 0 && *number < 100000) {
    return static_cast<int>(*number);
  }
  int id = -1;
  if (const auto* text = key.get_if<std::string>()) {
    const char* end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data(), end, id);
    if (error != std::errc() || stop != end) id = -1;
  }
  if (id < 0) fail("a layer has no number", where);
  return id;
}

SideTransform side_from(const PtValue& layer, const std::string& where) {
  SideTransform side;
  side.rotation = MatrixStack::from(member<Tensor>(layer, "rotation", where), where + ", rotation");
  for (const char* name : {"q_rotation", "o_rotation"}) {
    if (layer.find(std::string(name)) == nullptr) continue;
    side.read_rotation = MatrixStack::from(member<Tensor>(layer, name, where), where + ", " + name);
    if (side.read_rotation.dim != side.rotation.dim) fail(std::string(name) + " does not fit the rotation", where);
  }
  if (layer.find(std::string("k_mean")) != nullptr) {
    side.mean = member<Tensor>(layer, "k_mean", where).to_doubles();
    if (side.mean.empty() || side.mean.size() % static_cast<std::size_t>(side.rotation.dim) != 0) {
      fail("k_mean does not fit the rotation", where);
    }
  }
  if (const PtValue* eigenvalues = layer.find(std::string("eigenvalues"))) {
    const auto* tensor = eigenvalues->get_if<Tensor>();
    if (tensor == nullptr) fail("eigenvalues are not a tensor", where);
    side.eigenvalues = tensor->to_doubles();
    if (side.eigenvalues.size() != static_cast<std::size_t>(side.rotation.count) * side.rotation.dim) {
      fail("the number of eigenvalues does not fit the rotation", where);
    }
  }
  return side;
}

void append_extension(const SideTransform& side, const char* read_name, bool per_head, PtDict& entry) {
  if (side.read_rotation.count > 0) {
    entry.push_back({{std::string(read_name)}, {side.read_rotation.to_f32(/*squeeze=*/!per_head)}});
  }
  if (side.mean.empty()) return;
  const auto dim = static_cast<std::int64_t>(side.rotation.dim);
  const auto heads = static_cast<std::int64_t>(side.mean.size()) / dim;
  entry.push_back({{std::string("k_mean")}, {Tensor::from({heads, dim}, std::span(side.mean))}});
}

}  // namespace

RotationFile read_rotation_pt(const std::filesystem::path& path) {
  const PtValue root = read_pt(path);
  const std::int64_t version = member<std::int64_t>(root, "format_version", path.string());
  if (version < 1 || version > 3) fail("unknown format version " + std::to_string(version), path.string());
  RotationFile file;
  file.objective = member<std::string>(root, "objective", path.string());
  for (const auto& [key, layer] : member<PtDict>(root, "layers", path.string())) {
    const int id = layer_id_of(key, path.string());
    file.layers.emplace_back(id, side_from(layer, path.string() + ", layer " + std::to_string(id)));
  }
  if (file.layers.empty()) fail("the file has no layers", path.string());
  const auto by_id = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::sort(file.layers.begin(), file.layers.end(), by_id);
  return file;
}

void write_rotation_pt(const std::filesystem::path& path, const std::string& objective,
                       const std::vector<std::pair<int, const SideTransform*>>& layers, const PtSide& side_info) {
  const bool per_head =
      std::any_of(layers.begin(), layers.end(), [](const auto& l) { return l.second->rotation.count > 1; });
  const bool extended = std::any_of(layers.begin(), layers.end(), [](const auto& l) {
    return l.second->read_rotation.count > 0 || !l.second->mean.empty();
  });
  PtDict entries;
  for (const auto& [id, side] : layers) {
    const std::vector<float> eigenvalues(side->eigenvalues.begin(), side->eigenvalues.end());
    std::vector<std::int64_t> shape{side->rotation.dim};
    if (per_head) shape.insert(shape.begin(), side->rotation.count);
    PtDict entry{{{std::string("layer_id")}, {std::int64_t{id}}},
                 {{std::string("rotation")}, {side->rotation.to_f32(/*squeeze=*/!per_head)}},
                 {{std::string("eigenvalues")}, {Tensor::from(shape, std::span(eigenvalues))}}};
    append_extension(*side, side_info.read_name, per_head, entry);
    entries.push_back({{std::int64_t{id}}, {std::move(entry)}});
  }
  const std::int64_t version = extended ? 3 : per_head ? 2 : 1;
  PtDict root{{{std::string("format_version")}, {version}},
              {{std::string("objective")}, {objective}},
              {{std::string("source_grouping")}, {std::string(per_head ? "head" : "layer")}},
              {{std::string("layers")}, {std::move(entries)}}};
  if (extended) {
    root.push_back({{std::string("transform")}, {side_info.transform}});
    root.push_back({{std::string("calibration")}, {side_info.calibration}});
  }
  write_pt(path, {std::move(root)});
}

}  // namespace oscar
