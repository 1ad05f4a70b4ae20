// SPDX-License-Identifier: MIT
#include "rotation/formats.hpp"

#include "base/errors.hpp"
#include "base/files.hpp"
#include "rotation/manifest.hpp"
#include "rotation/rotation_h5.hpp"
#include "rotation/rotation_pt.hpp"
#include "rotation/serve_env.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

void write_side_pt(const fs::path& path, const std::string& objective, const RotationSet& set,
                   const SideTransform LayerRotation::*side) {
  std::vector<std::pair<int, const SideTransform*>> layers;
  for (const LayerRotation& layer : set.layers) layers.emplace_back(layer.layer_id, &(layer.*side));
  const auto text = [](const char* name, std::string value) { return PtItem{{std::string(name)}, {std::move(value)}}; };
  const auto number = [](const char* name, std::int64_t value) { return PtItem{{std::string(name)}, {value}}; };
  const PtDict transform{text("recipe", set.recipe.is_object() ? set.recipe.value("name", "") : ""),
                         text("codec", std::string(name_of(set.key_codec.grid))),
                         number("key_levels", set.key_codec.levels),
                         number("value_levels", set.value_codec.levels),
                         number("group_size", set.key_codec.group_size),
                         text("scale_dtype", std::string(name_of(set.key_codec.scale_dtype)))};
  const PtDict calibration{text("model_path", set.model.id),
                           text("model_revision", set.model.revision),
                           text("prompt_sha256", set.calibration.data_sha256),
                           number("tokens", set.calibration.tokens),
                           number("global_kv_heads", set.model.num_key_value_heads),
                           number("global_q_heads", set.model.num_attention_heads)};
  const bool key = side == &LayerRotation::key;
  write_rotation_pt(path, objective, layers, {key ? "q_rotation" : "o_rotation", transform, calibration});
}

void append_tensors(const std::string& prefix, const SideTransform& side,
                    std::vector<std::pair<std::string, Tensor>>& tensors) {
  const auto add = [&](const char* name, const MatrixStack& stack) {
    if (stack.count > 0) tensors.emplace_back(prefix + name, stack.to_f32(stack.count == 1));
  };
  add(".rotation", side.rotation);
  add(prefix.ends_with(".key") ? ".q_rotation" : ".o_rotation", side.read_rotation);
  if (side.mean.empty()) return;
  const auto dim = static_cast<std::int64_t>(side.rotation.dim);
  tensors.emplace_back(prefix + ".mean",
                       Tensor::from({static_cast<std::int64_t>(side.mean.size()) / dim, dim}, std::span(side.mean)));
}

void write_rotation_safetensors(const fs::path& path, const RotationSet& set) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const LayerRotation& layer : set.layers) {
    const std::string prefix = "layers." + std::to_string(layer.layer_id);
    for (const auto& [name, side] : {std::pair(".key", &layer.key), std::pair(".value", &layer.value)}) {
      append_tensors(prefix + name, *side, tensors);
    }
  }
  write_safetensors(path, tensors,
                    {{"schema", "oscar.rotation_set.v1"},
                     {"key_objective", set.key_objective},
                     {"value_objective", set.value_objective}});
}

/// The only file in `folder` with this beginning and ".pt".
fs::path only_match(const fs::path& folder, const std::string& prefix) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(".pt")) found.push_back(entry.path());
  }
  if (found.size() == 1) return found.front();
  throw DataError(found.empty() ? "no manifest.json and no " + prefix + "*.pt" : "several " + prefix + "*.pt",
                  folder.string(), "name a rotation set, or a folder with one k_rotation and one v_rotation file");
}

RotationSet read_foreign_folder(const fs::path& folder) {
  const RotationFile keys = read_rotation_pt(only_match(folder, "k_rotation"));
  const RotationFile values = read_rotation_pt(only_match(folder, "v_rotation"));
  RotationSet set;
  set.key_objective = keys.objective;
  set.value_objective = values.objective;
  for (std::size_t i = 0; i < keys.layers.size(); ++i) {
    if (keys.layers.size() != values.layers.size() || keys.layers[i].first != values.layers[i].first) {
      throw DataError("the key file and the value file have different layers", folder.string(),
                      "use two files of the same fit");
    }
    set.layers.push_back({keys.layers[i].first, keys.layers[i].second, values.layers[i].second});
  }
  return set;
}

void fill_from_pt(const fs::path& folder, RotationSet& set) {
  const RotationFile keys = read_rotation_pt(folder / key_pt_name(set));
  const RotationFile values = read_rotation_pt(folder / value_pt_name(set));
  for (std::size_t i = 0; i < set.layers.size(); ++i) {
    LayerRotation& layer = set.layers[i];
    const auto copy = [&](const RotationFile& file, SideTransform& side) {
      if (i >= file.layers.size() || file.layers[i].first != layer.layer_id) {
        throw DataError("the .pt files lack layer " + std::to_string(layer.layer_id), folder.string(),
                        "fit the set again");
      }
      static_cast<Transform&>(side) = file.layers[i].second;
      side.eigenvalues = file.layers[i].second.eigenvalues;
    };
    copy(keys, layer.key);
    copy(values, layer.value);
  }
}

}  // namespace

void write_rotation_set(const fs::path& folder, const RotationSet& set, const RotationFormats& formats, bool replace) {
  AtomicFolder out(folder, replace);
  if (formats.pt) {
    write_side_pt(out.path() / key_pt_name(set), set.key_objective, set, &LayerRotation::key);
    write_side_pt(out.path() / value_pt_name(set), set.value_objective, set, &LayerRotation::value);
    write_file(out.path() / "serve.env", serve_env(set));
  }
  if (formats.h5) write_rotation_h5(out.path() / "rotations.h5", set);
  if (formats.safetensors) write_rotation_safetensors(out.path() / "rotations.safetensors", set);
  if (set.has_clip_ratios) write_clip_tables(out.path(), set);
  const Json manifest = make_manifest(set, list_with_hashes(out.path(), list_files(out.path())));
  validate_json(manifest, "oscar.rotation_set.v1", folder.string());
  write_json(out.path() / "manifest.json", manifest);
  out.commit();
}

RotationSet read_rotation_set(const fs::path& path) {
  if (!fs::is_directory(path)) throw DataError("no such folder", path.string(), "name a rotation set");
  const fs::path manifest_path = path / "manifest.json";
  if (!fs::exists(manifest_path)) return read_foreign_folder(path);
  const Json manifest = read_json(manifest_path);
  RotationSet set = set_from_manifest(manifest, manifest_path.string());
  check_listed_files(path, manifest);
  if (fs::exists(path / "rotations.h5")) {
    read_rotation_h5(path / "rotations.h5", set);
  } else {
    fill_from_pt(path, set);
  }
  return set;
}

}  // namespace oscar
