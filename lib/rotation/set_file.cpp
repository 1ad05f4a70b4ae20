// SPDX-License-Identifier: MIT
#include "rotation/set_file.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <span>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "rotation/manifest.hpp"
#include "rotation/names.hpp"
#include "rotation/one_truth.hpp"
#include "rotation/set_h5.hpp"
#include "tensor/hdf5.hpp"
#include "tensor/npz.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

using NamedTensor = std::pair<std::string, Tensor>;

/// Of the read side, as in format version 3 of the .pt files.
const char* read_name(bool key) { return key ? "q_rotation" : "o_rotation"; }

std::string side_prefix(int layer_id, bool key, char separator) {
  const std::string s(1, separator);
  return "layers" + s + std::to_string(layer_id) + s + (key ? "key" : "value") + s;
}

void append_side(const SideTransform& side, bool key, const std::string& prefix, std::vector<NamedTensor>& out) {
  const bool squeeze = side.rotation.count == 1;
  const auto dim = static_cast<std::int64_t>(side.rotation.dim);
  const auto add = [&](const char* name, const MatrixStack& stack) {
    if (stack.count > 0) out.emplace_back(prefix + name, stack.to_f32(squeeze));
  };
  add("rotation", side.rotation);
  add(read_name(key), side.read_rotation);
  if (!side.mean.empty()) {
    const auto heads = static_cast<std::int64_t>(side.mean.size()) / dim;
    out.emplace_back(prefix + "mean", Tensor::from({heads, dim}, std::span(side.mean)));
  }
  if (!side.eigenvalues.empty()) {
    const std::vector<float> eigenvalues(side.eigenvalues.begin(), side.eigenvalues.end());
    std::vector<std::int64_t> shape{dim};
    if (!squeeze) shape.insert(shape.begin(), side.rotation.count);
    out.emplace_back(prefix + "eigenvalues", Tensor::from(shape, std::span(eigenvalues)));
  }
  if (!side.head_clip_ratios.empty()) {
    const auto heads = static_cast<std::int64_t>(side.head_clip_ratios.size());
    out.emplace_back(prefix + "clip_ratio_per_head", Tensor::from({heads}, std::span(side.head_clip_ratios)));
  }
  add("covariance", side.covariance);
  add("query_covariance", side.query_covariance);
}

void fill_side(SideTransform& side, bool key, const TensorLookup& tensors, const std::string& prefix,
               const std::string& where) {
  const auto stack = [&](const std::string& name) {
    return MatrixStack::from(tensors.read(prefix + name), where + ", " + prefix + name);
  };
  side.rotation = stack("rotation");
  for (const auto& [name, matrices] :
       {std::pair{read_name(key), &side.read_rotation}, std::pair{"covariance", &side.covariance},
        std::pair{"query_covariance", &side.query_covariance}}) {
    if (tensors.has(prefix + name)) *matrices = stack(name);
  }
  if (tensors.has(prefix + "mean")) side.mean = tensors.read(prefix + "mean").to_doubles();
  if (tensors.has(prefix + "eigenvalues")) side.eigenvalues = tensors.read(prefix + "eigenvalues").to_doubles();
  const auto same_shape = [&](const MatrixStack& other) {
    return other.count == 0 || (other.count == side.rotation.count && other.dim == side.rotation.dim);
  };
  const auto numbers = static_cast<std::size_t>(side.rotation.count) * side.rotation.dim;
  const bool fits = side.rotation.dim > 0 && (side.eigenvalues.empty() || side.eigenvalues.size() == numbers) &&
                    same_shape(side.covariance) && same_shape(side.query_covariance) &&
                    same_shape(side.read_rotation) &&
                    side.mean.size() % static_cast<std::size_t>(side.rotation.dim) == 0;
  if (!fits) {
    throw DataError("read side, mean, eigenvalues or covariance do not fit the rotation", where + ", " + prefix,
                    "fit the set again");
  }
}

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

RotationSet read_npz(const fs::path& path) {
  const NpzFile file(path);
  Contents contents;
  for (const auto& [name, bytes] : file.members()) {
    if (name == "manifest.json") {
      contents.manifest.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    } else {
      contents.tensors.push_back(name.substr(0, name.rfind(".npy")));
    }
  }
  contents.lookup = {[&](const std::string& name) { return file.has(name); },
                     [&](const std::string& name) { return file.read(name); }};
  contents.disagreements = [&](const RotationSet& set) { return named_disagreements(contents, set); };
  return set_from(contents, path.string());
}

}  // namespace

std::vector<NamedTensor> tensors_of(const RotationSet& set, char separator) {
  std::vector<NamedTensor> out;
  for (const LayerRotation& layer : set.layers) {
    append_side(layer.key, true, side_prefix(layer.layer_id, true, separator), out);
    append_side(layer.value, false, side_prefix(layer.layer_id, false, separator), out);
  }
  return out;
}

Tensor bytes_tensor(const std::string& text) {
  Tensor tensor(DType::kU8, {static_cast<std::int64_t>(text.size())});
  std::ranges::copy(std::as_bytes(std::span(text)), tensor.data.begin());
  return tensor;
}

void require_finite(const RotationSet& set, const std::string& where) {
  const auto finite = [](const std::vector<double>& values) {
    return std::ranges::all_of(values, [](double x) { return std::isfinite(static_cast<float>(x)); });
  };
  const auto sane = [](const std::vector<double>& values) {
    return std::ranges::all_of(values, [](double x) { return std::abs(x) <= 1e6; });
  };
  for (const LayerRotation& layer : set.layers) {
    for (const SideTransform* side : {&layer.key, &layer.value}) {
      if (sane(side->rotation.data) && sane(side->read_rotation.data) && finite(side->rotation.data) &&
          finite(side->read_rotation.data) && finite(side->mean) && finite(side->eigenvalues) &&
          finite(side->covariance.data) && finite(side->query_covariance.data)) {
        continue;
      }
      throw DataError("layer " + std::to_string(layer.layer_id) + " has values that are NaN, infinite or beyond reason",
                      where, "fit the set again, or ask its maker");
    }
  }
}

void fill_layers(RotationSet& set, const TensorLookup& tensors, char separator, const std::string& where) {
  for (LayerRotation& layer : set.layers) {
    fill_side(layer.key, true, tensors, side_prefix(layer.layer_id, true, separator), where);
    fill_side(layer.value, false, tensors, side_prefix(layer.layer_id, false, separator), where);
  }
}

void write_set_file(const fs::path& path, SetFileKind kind, const RotationSet& set, bool alone) {
  if (kind == SetFileKind::kH5) return write_set_h5(path, set, alone);
  const auto tensors = tensors_of(set, '.');
  if (kind == SetFileKind::kNpz) {
    using Texts = std::vector<std::pair<std::string, std::string>>;
    return write_npz(path, tensors, alone ? Texts{{"manifest.json", manifest_text(set)}} : Texts{});
  }
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
  return kind == SetFileKind::kNpz ? read_npz(path) : read_safetensors(path);
}

}  // namespace oscar
