// SPDX-License-Identifier: MIT
// OSCAR's branch of llama.cpp (tensors inside a model's GGUF), and servers of MLA models (a folder with one file per
// layer).
#include <algorithm>
#include <map>
#include <optional>

#include "base/errors.hpp"
#include "base/places.hpp"
#include "base/text.hpp"
#include "set/formats.hpp"
#include "set/manifest.hpp"
#include "set/serve_env.hpp"
#include "tensor/gguf.hpp"

namespace oscar {
namespace {

constexpr char kManifestKey[] = "oscar.manifest";

/// The number between `prefix` and `suffix`; nullopt if `name` is not of that form.
std::optional<int> number_in(const std::string& name, std::string_view prefix, std::string_view suffix) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() <= prefix.size() + suffix.size()) return {};
  return parse_number(std::string_view(name).substr(prefix.size(), name.size() - prefix.size() - suffix.size()));
}

std::string gguf_name(int id, char side) { return "blk." + std::to_string(id) + ".attn_" + side + "_rot.weight"; }

/// Puts the matrices into the part: into its layers if it knows them, else as its layers.
void take_layers(std::map<int, LayerRotation> layers, RotationPart& part, const std::string& where) {
  if (layers.empty())
    throw DataError("there are no rotations in this file", where, "\"oscar inspect\" says what it is");
  if (part.layers.empty()) {
    for (auto& [id, layer] : layers) part.layers.push_back(std::move(layer));
    return;
  }
  for (LayerRotation& layer : part.layers) {
    const auto found = layers.find(layer.layer_id);
    if (found == layers.end() || layers.size() != part.layers.size()) {
      throw DataError("the layers are not those of the manifest in the file", where, "convert the set again");
    }
    static_cast<Transform&>(layer.key) = std::move(found->second.key);
    static_cast<Transform&>(layer.value) = std::move(found->second.value);
  }
}

/// Rotations that tell nothing but their matrices.
RotationPart unknown_part() {
  RotationPart part;
  part.key_objective = part.value_objective = "unknown";
  return part;
}

void require_fit(const RotationPart& set, const GgufFile& model, const std::string& where) {
  const std::string architecture = model.text("general.architecture").value_or("");
  const auto blocks = model.number(architecture + ".block_count");
  const auto head_dim = model.number(architecture + ".attention.key_length");
  if (const Json parts = model.value("split.count"); parts.is_number_integer() && parts > 1) {
    throw DataError("the file is one of " + parts.dump() + " parts of a model", where,
                    "merge its parts first, for example by llama.cpp's llama-gguf-split --merge");
  }
  for (const LayerRotation& layer : set.layers) {
    const bool inside = !blocks || static_cast<std::uint32_t>(layer.layer_id) < *blocks;
    const bool same = !head_dim || static_cast<std::uint32_t>(layer.key.rotation.dim) == *head_dim;
    if (inside && same) continue;
    throw DataError("the model has " + (inside ? "head_dim " + std::to_string(*head_dim) : plural(*blocks, "layer")) +
                        ", the set has " +
                        (inside ? std::to_string(layer.key.rotation.dim) : "layer " + std::to_string(layer.layer_id)),
                    where, "use the GGUF of the model that the set was fitted for");
  }
}

SideTransform latent_from(const PtValue& value, const std::string& where) {
  SideTransform side;
  const auto* bare = value.get_if<Tensor>();
  const Tensor* rotation = bare != nullptr ? bare : member_of<Tensor>(&value, "rotation");
  if (rotation == nullptr) {
    throw DataError("neither a matrix nor a dict with \"rotation\"", where,
                    "check that this is an MLA rotation folder");
  }
  side.rotation = MatrixStack::from(*rotation, where);
  if (bare != nullptr) return side;
  if (const auto* read = member_of<Tensor>(&value, "q_rotation")) {
    side.read_rotation = MatrixStack::from(*read, where + ", q_rotation");
  }
  if (const auto* mean = member_of<Tensor>(&value, "mean")) side.mean = mean->to_doubles();
  const bool fits =
      side.rotation.count == 1 && side.mean.size() % static_cast<std::size_t>(side.rotation.dim) == 0 &&
      (side.read_rotation.count == 0 || (side.read_rotation.count == 1 && side.read_rotation.dim == side.rotation.dim));
  if (!fits) throw DataError("mean or q_rotation do not fit the rotation", where, "fetch or write the file again");
  return side;
}

}  // namespace

void write_rotation_gguf(const fs::path& path, const Set& set, const fs::path& model) {
  const RotationPart& part = set.rotations.begin()->second;
  if (const std::string beyond = beyond_reader(reader_from_name("llamacpp", ""), part); !beyond.empty()) {
    throw DataError("the set has what llama.cpp cannot use: " + beyond, "",
                    "take another of its parts, fit a set with --for llamacpp, or convert to h5 or safetensors");
  }
  if (is_remote(model)) throw UsageError("this model is copied, and must lie on a disk", "--into", "download it first");
  const GgufFile source(model);
  require_fit(part, source, model.string());
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const LayerRotation& layer : part.layers) {
    for (const auto& [side, transform] : {std::pair{'k', &layer.key}, std::pair{'v', &layer.value}}) {
      tensors.emplace_back(gguf_name(layer.layer_id, side), transform->rotation.transposed().to_f32(true));
    }
  }
  write_gguf_copy(path, source, tensors, {{kManifestKey, make_manifest(set, Json::array()).dump()}});
}

Set read_rotation_gguf(const fs::path& path) {
  const GgufFile file(path);
  std::map<int, LayerRotation> layers;
  for (const GgufTensor& tensor : file.tensors()) {
    auto id = number_in(tensor.name, "blk.", ".attn_k_rot.weight");
    if (!id) id = number_in(tensor.name, "blk.", ".attn_v_rot.weight");
    if (!id || layers.contains(*id)) continue;
    const auto matrix = [&](char side) {
      const std::string name = gguf_name(*id, side);
      return MatrixStack::from(file.read(name), path.string() + ", " + name).transposed();
    };
    layers[*id].layer_id = *id;
    layers[*id].key.rotation = matrix('k');
    layers[*id].value.rotation = matrix('v');
  }
  const auto manifest = file.text(kManifestKey);
  if (manifest) {
    Set set = set_of_one_file(*manifest, path.string());
    take_layers(std::move(layers), set.rotations.begin()->second, path.string());
    return set;
  }
  RotationPart part = unknown_part();
  part.model.id = file.text("general.name").value_or("");
  take_layers(std::move(layers), part, path.string());
  return set_of(std::move(part));
}

void write_rotation_mla(const fs::path& folder, const RotationPart& set) {
  for (const LayerRotation& layer : set.layers) {
    const SideTransform& latent = layer.key;
    if (latent.rotation.count != 1 || latent.rotation.data != layer.value.rotation.data) {
      throw DataError("keys and values, or heads, have transforms of their own; an MLA cache has one row for all",
                      "layer " + std::to_string(layer.layer_id), "convert to another format");
    }
    write_pt(folder / latent_pt_name(layer.layer_id), latent_pt(layer));
  }
}

RotationPart read_rotation_mla(const fs::path& folder) {
  std::map<int, LayerRotation> layers;
  for (const auto& file : fs::directory_iterator(folder)) {
    const auto id = number_in(file.path().filename().string(), "layer_", ".pt");
    if (!id) continue;
    const SideTransform latent = latent_from(read_pt(file.path()), file.path().string());
    const auto [layer, first] = layers.try_emplace(*id, LayerRotation{*id, latent, latent});
    if (!first) {
      throw DataError("two files are of layer " + std::to_string(*id), file.path().string(), "remove one of them");
    }
    // Of values: o = o' o_rotation^T must undo the rotation, as q_rotation does for scores.
    layer->second.value.mean.clear();
  }
  RotationPart part = unknown_part();
  part.latent = true;
  take_layers(std::move(layers), part, folder.string());
  return part;
}

}  // namespace oscar
