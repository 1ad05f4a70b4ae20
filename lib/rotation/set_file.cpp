// SPDX-License-Identifier: MIT
#include "rotation/set_file.hpp"

#include <charconv>
#include <map>
#include <set>

#include "base/errors.hpp"
#include "base/version.hpp"
#include "rotation/manifest.hpp"
#include "rotation/named_tensors.hpp"
#include "tensor/hdf5.hpp"
#include "tensor/npz.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

std::string manifest_text(const RotationSet& set) { return make_manifest(set, Json::array()).dump(1); }

Tensor bytes_tensor(const std::string& text) {
  Tensor tensor(DType::kU8, {static_cast<std::int64_t>(text.size())});
  const auto bytes = std::as_bytes(std::span(text));
  std::copy(bytes.begin(), bytes.end(), tensor.data.begin());
  return tensor;
}

void write_h5(const fs::path& path, const RotationSet& set, bool alone) {
  Hdf5Writer file(path);
  file.attribute("/", "schema", std::string("oscar.rotation_set.v1"));
  file.attribute("/", "oscar_version", std::string(kVersion));
  file.attribute("/", "model_id", set.model.id);
  file.attribute("/", "model_config_sha256", set.model.config_sha256);
  file.attribute("/", "calibration_data_sha256", set.calibration.data_sha256);
  file.attribute("/", "calibration_tokens", set.calibration.tokens);
  file.attribute("/", "recipe", set.recipe.dump());
  file.attribute("/", "key_objective", set.key_objective);
  file.attribute("/", "value_objective", set.value_objective);
  file.attribute("/", "sink", std::int64_t{set.windows.sink});
  file.attribute("/", "recent", std::int64_t{set.windows.recent});
  file.attribute("/", "codec", std::string(name_of(set.key_codec.grid)));
  file.attribute("/", "key_levels", std::int64_t{set.key_codec.levels});
  file.attribute("/", "value_levels", std::int64_t{set.value_codec.levels});
  file.attribute("/", "group_size", std::int64_t{set.key_codec.group_size});
  file.attribute("/", "scale_dtype", std::string(name_of(set.key_codec.scale_dtype)));
  for (const auto& [name, tensor] : tensors_of(set, '/')) file.write("/" + name, tensor);
  for (const LayerRotation& layer : set.layers) {
    const std::string group = "/layers/" + std::to_string(layer.layer_id);
    if (!set.has_clip_ratios) continue;
    file.attribute(group + "/key", "clip_ratio", layer.key.clip_ratio);
    file.attribute(group + "/value", "clip_ratio", layer.value.clip_ratio);
  }
  if (alone) file.write("/manifest", bytes_tensor(manifest_text(set)));
  file.commit();
}

/// What a file tells about itself: the manifest if it has one, else a few texts, and the names of its tensors.
struct Contents {
  std::string manifest;
  std::map<std::string, std::string> texts;
  std::vector<std::string> tensors;  // "layers.0.key.rotation"; of an HDF5 file, the layers' rotations only
  char separator = '.';
  TensorLookup lookup;
};

std::set<int> layer_ids(const Contents& contents) {
  std::set<int> ids;
  const std::string prefix = std::string("layers") + contents.separator;
  for (const std::string& name : contents.tensors) {
    if (!name.starts_with(prefix)) continue;
    int id = -1;
    const char* begin = name.data() + prefix.size();
    const auto [end, error] = std::from_chars(begin, name.data() + name.size(), id);
    if (error == std::errc() && id >= 0 && end != begin && *end == contents.separator) ids.insert(id);
  }
  return ids;
}

RotationSet set_from(const Contents& contents, const std::string& where) {
  RotationSet set;
  if (!contents.manifest.empty()) {
    set = set_from_manifest(parse_json(contents.manifest, where), where);
  } else {
    const auto text = [&](const char* name) {
      const auto found = contents.texts.find(name);
      return found == contents.texts.end() ? std::string() : found->second;
    };
    set.key_objective = text("key_objective");
    set.value_objective = text("value_objective");
    set.model.id = text("model_id");
    for (const int id : layer_ids(contents)) set.layers.push_back({id, {}, {}});
  }
  if (set.layers.empty()) {
    throw DataError("there is no rotation set in this file", where, "\"oscar inspect\" says what it is");
  }
  fill_layers(set, contents.lookup, contents.separator, where);
  return set;
}

TensorLookup lookup_in(const Hdf5Reader& file) {
  return {[&](const std::string& name) { return file.has("/" + name); },
          [&](const std::string& name) { return file.read("/" + name); }};
}

RotationSet read_h5(const fs::path& path) {
  const Hdf5Reader file(path);
  Contents contents;
  contents.separator = '/';
  contents.lookup = lookup_in(file);
  if (file.has("/manifest")) {
    const Tensor bytes = file.read("/manifest");
    contents.manifest.assign(reinterpret_cast<const char*>(bytes.data.data()), bytes.data.size());
  }
  for (const char* name : {"key_objective", "value_objective", "model_id"}) {
    if (!file.has_attribute("/", name)) continue;
    const Hdf5Attribute value = file.attribute("/", name);
    if (const auto* text = std::get_if<std::string>(&value)) contents.texts[name] = *text;
  }
  if (file.has("/layers")) {
    for (const std::string& id : file.members("/layers")) contents.tensors.push_back("layers/" + id + "/");
  }
  return set_from(contents, path.string());
}

RotationSet read_safetensors(const fs::path& path) {
  const SafetensorsFile file(path);
  Contents contents;
  contents.texts = file.metadata();
  if (const auto manifest = contents.texts.find("manifest"); manifest != contents.texts.end()) {
    contents.manifest = manifest->second;
  }
  for (const auto& [name, tensor] : file.tensors()) contents.tensors.push_back(name);
  contents.lookup = {[&](const std::string& name) { return file.tensors().contains(name); },
                     [&](const std::string& name) { return file.load(name); }};
  return set_from(contents, path.string());
}

RotationSet read_npz(const fs::path& path) {
  const NpzFile file(path);
  Contents contents;
  for (const auto& [name, bytes] : file.members()) {
    if (name == "manifest.json") {
      contents.manifest.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    } else {
      contents.tensors.push_back(name);
    }
  }
  contents.lookup = {[&](const std::string& name) { return file.has(name); },
                     [&](const std::string& name) { return file.read(name); }};
  return set_from(contents, path.string());
}

}  // namespace

void write_set_file(const fs::path& path, SetFileKind kind, const RotationSet& set, bool alone) {
  if (kind == SetFileKind::kH5) return write_h5(path, set, alone);
  const auto tensors = tensors_of(set, '.');
  if (kind == SetFileKind::kNpz) {
    using Texts = std::vector<std::pair<std::string, std::string>>;
    return write_npz(path, tensors, alone ? Texts{{"manifest.json", manifest_text(set)}} : Texts{});
  }
  std::map<std::string, std::string> metadata{{"schema", "oscar.rotation_set.v1"},
                                              {"key_objective", set.key_objective},
                                              {"value_objective", set.value_objective}};
  if (alone) metadata["manifest"] = manifest_text(set);
  write_safetensors(path, tensors, metadata, alone ? Checksums::kYes : Checksums::kNo);  // else the manifest has one
}

void fill_from_h5(const fs::path& path, RotationSet& set) {
  const Hdf5Reader file(path);
  fill_layers(set, lookup_in(file), '/', path.string());
}

RotationSet read_set_file(const fs::path& path, SetFileKind kind) {
  if (kind == SetFileKind::kH5) return read_h5(path);
  return kind == SetFileKind::kNpz ? read_npz(path) : read_safetensors(path);
}

}  // namespace oscar
