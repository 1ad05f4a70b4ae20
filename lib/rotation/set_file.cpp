// SPDX-License-Identifier: MIT
#include "rotation/set_file.hpp"

#include <charconv>
#include <functional>
#include <map>
#include <set>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "rotation/manifest.hpp"
#include "rotation/manifest_truth.hpp"
#include "rotation/named_tensors.hpp"
#include "rotation/objective.hpp"
#include "rotation/set_h5.hpp"
#include "tensor/hdf5.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

std::string manifest_text(const RotationSet& set) { return make_manifest(set, Json::array()).dump(1); }

/// What a file tells about itself: the manifest if it has one, else a few texts, and the names of its tensors.
struct Contents {
  std::string manifest;
  std::map<std::string, std::string> texts;
  std::vector<std::string> tensors;  // "layers.0.key.rotation"; of an HDF5 file, the layers' rotations only
  char separator = '.';
  TensorLookup lookup;
  /// Beside the manifest, if there is one.
  std::function<std::vector<std::string>(const RotationSet&)> disagreements;
};

std::map<std::string, std::string> metadata_of(const RotationSet& set) {
  return {{"schema", "oscar.rotation_set.v1"},
          {"key_objective", set.key_objective},
          {"value_objective", set.value_objective}};
}

void require_agreement(const std::vector<std::string>& disagreements, const std::string& where) {
  if (disagreements.empty()) return;
  throw DataError(disagreements.front(), where, "fetch or convert the set again; do not use this file");
}

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
    const auto text = [&](const char* name, const char* without) {
      const auto found = contents.texts.find(name);
      return found == contents.texts.end() ? std::string(without) : plain_text(found->second, name, where);
    };
    set.key_objective = known_objective(text("key_objective", "unknown"), where);
    set.value_objective = known_objective(text("value_objective", "unknown"), where);
    set.model.id = text("model_id", "");
    for (const int id : layer_ids(contents)) set.layers.push_back({id, {}, {}});
  }
  if (set.layers.empty()) {
    throw DataError("there is no rotation set in this file", where, "\"oscar inspect\" says what it is");
  }
  fill_layers(set, contents.lookup, contents.separator, where);
  if (!set.manifest.is_null()) require_agreement(manifest_disagreements(set), where);
  require_agreement(contents.disagreements(set), where);
  require_finite(set, where);
  return set;
}

/// Tensors by name, and texts beside the manifest, that are not those which write_set_file() writes.
std::vector<std::string> named_disagreements(const Contents& contents, const RotationSet& set) {
  std::vector<std::string> out;
  std::set<std::string> known;
  for (const auto& [name, tensor] : tensors_of(set, contents.separator)) known.insert(name);
  for (const std::string& name : contents.tensors) {
    if (!known.contains(name)) out.push_back("the tensor " + name + " is in no set with this manifest");
  }
  const auto usual = metadata_of(set);
  for (const auto& [name, text] : contents.texts) {
    if (set.manifest.is_null() || name == "manifest" || name == "sha256")
      continue;  // the reader has looked at the checksums
    const auto found = usual.find(name);
    if (found == usual.end() || found->second != text) {
      out.push_back("the text \"" + name + "\" is not what the manifest says");
    }
  }
  return out;
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
  contents.disagreements = [&](const RotationSet& set) {
    if (set.manifest.is_null()) require_bare_h5(file, set, path.string());
    return set.manifest.is_null() ? std::vector<std::string>() : h5_disagreements(file, set, true);
  };
  if (file.has("/layers")) {
    for (const std::string& id : file.members("/layers")) contents.tensors.push_back("layers/" + id + "/");
  }
  return set_from(contents, path.string());
}

Contents contents_of(const SafetensorsFile& file) {
  Contents contents;
  contents.texts = file.metadata();
  if (const auto manifest = contents.texts.find("manifest"); manifest != contents.texts.end()) {
    contents.manifest = manifest->second;
  }
  for (const auto& [name, tensor] : file.tensors()) contents.tensors.push_back(name);
  contents.lookup = {[&file](const std::string& name) { return file.tensors().contains(name); },
                     [&file](const std::string& name) { return file.load(name); }};
  return contents;
}

RotationSet read_safetensors(const fs::path& path) {
  const SafetensorsFile file(path);
  Contents contents = contents_of(file);
  contents.disagreements = [&](const RotationSet& set) { return named_disagreements(contents, set); };
  return set_from(contents, path.string());
}

}  // namespace

void write_set_file(const fs::path& path, SetFileKind kind, const RotationSet& set, bool alone) {
  if (kind == SetFileKind::kH5) return write_set_h5(path, set, alone);
  const auto tensors = tensors_of(set, '.');
  std::map<std::string, std::string> metadata = metadata_of(set);
  if (alone) metadata["manifest"] = manifest_text(set);
  write_safetensors(path, tensors, metadata, alone ? Checksums::kYes : Checksums::kNo);  // else the manifest has one
}

void fill_from_h5(const fs::path& path, RotationSet& set) {
  const Hdf5Reader file(path);
  fill_layers(set, lookup_in(file), '/', path.string());
}

void fill_from_safetensors(const fs::path& path, RotationSet& set) {
  const SafetensorsFile file(path);
  fill_layers(set, contents_of(file).lookup, '.', path.string());
}

std::vector<std::string> safetensors_disagreements(const fs::path& path, const RotationSet& set) {
  const SafetensorsFile file(path);
  std::vector<std::string> out = named_disagreements(contents_of(file), set);
  for (const auto& [name, tensor] : tensors_of(set, '.')) {
    if (!file.tensors().contains(name) || !(file.at(name).copy() == tensor)) out.push_back(name + " is another tensor");
  }
  return out;
}

RotationSet read_set_file(const fs::path& path, SetFileKind kind) {
  if (kind == SetFileKind::kH5) return read_h5(path);
  return read_safetensors(path);
}

}  // namespace oscar
