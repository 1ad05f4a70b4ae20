// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <span>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "set/formats.hpp"
#include "set/manifest.hpp"
#include "set/set_folder.hpp"
#include "tensor/hdf5.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

using NamedTensor = std::pair<std::string, Tensor>;

/// Where tensors come from.
struct TensorLookup {
  std::function<bool(const std::string&)> has;
  std::function<Tensor(const std::string&)> read;  // throws DataError if it is missing
};

/// Of the read side, as in format version 3 of the .pt files.
const char* read_name(bool key) { return key ? "q_rotation" : "o_rotation"; }

std::string side_prefix(int layer_id, bool key) {
  return "layers." + std::to_string(layer_id) + (key ? ".key." : ".value.");
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

void fill_layers(RotationPart& part, const TensorLookup& tensors, const std::string& where) {
  for (LayerRotation& layer : part.layers) {
    fill_side(layer.key, true, tensors, side_prefix(layer.layer_id, true), where);
    fill_side(layer.value, false, tensors, side_prefix(layer.layer_id, false), where);
  }
}

std::vector<NamedTensor> tensors_of(const RotationPart& part) {
  std::vector<NamedTensor> out;
  for (const LayerRotation& layer : part.layers) {
    append_side(layer.key, true, side_prefix(layer.layer_id, true), out);
    append_side(layer.value, false, side_prefix(layer.layer_id, false), out);
  }
  return out;
}

constexpr const char *kSchemaName = "schema", *kManifestName = "manifest", *kManifestPath = "/manifest";

/// "/layers/0/key/mean" of "layers.0.key.mean".
std::string h5_path(std::string name) {
  std::ranges::replace(name, '.', '/');
  return "/" + name;
}

void write_h5(const fs::path& path, const RotationPart& part, const std::string& manifest) {
  Hdf5Writer file(path);
  file.attribute(kSchemaName, kSetSchema);
  for (const auto& [name, tensor] : tensors_of(part)) file.write(h5_path(name), tensor);
  if (!manifest.empty()) {
    Tensor bytes(DType::kU8, {std::ssize(manifest)});
    std::ranges::copy(std::as_bytes(std::span(manifest)), bytes.data.begin());
    file.write(kManifestPath, bytes);
  }
  file.commit();
}

TensorLookup lookup_in(const Hdf5Reader& file) {
  return {[&](const std::string& name) { return file.has(h5_path(name)); },
          [&](const std::string& name) { return file.read(h5_path(name)); }};
}

/// A clause for each tensor, object or attribute of the file that does not follow from `part`, which was filled from
/// it.
std::vector<std::string> disagreements_of(const Hdf5Reader& file, const RotationPart& part, bool alone) {
  std::vector<std::string> out;
  std::map<std::string, std::set<std::string>> members{{"/", {}}};  // of groups; a dataset has none
  if (alone) members["/"].insert(kManifestName);
  for (const auto& [name, tensor] : tensors_of(part)) {
    for (fs::path at = h5_path(name); at.has_relative_path(); at = at.parent_path()) {
      (void)members[at.string()];
      members[at.parent_path().string()].insert(at.filename().string());
    }
    if (!(file.read(h5_path(name)) == tensor))
      out.push_back(name + " is not what the manifest and the other files say");
  }
  for (const auto& [object, known] : members) {
    for (const std::string& name : known.empty() ? std::vector<std::string>() : file.members(object)) {
      if (!known.contains(name)) out.push_back(object + " has \"" + name + "\", which no set has");
    }
    for (const std::string& name : file.attribute_names(object)) {
      if (object == "/" && name == kSchemaName && file.attribute(object, name) == kSetSchema) continue;
      out.push_back(object + " has the attribute \"" + name + "\", which no set has");
    }
  }
  return out;
}

using Disagreements = std::function<std::vector<std::string>(const RotationPart&)>;

/// The set of a file that stands alone. disagreements: what in it does not follow from what was read.
Set set_from(const std::string& manifest, const TensorLookup& tensors, const Disagreements& disagreements,
             const std::string& where) {
  if (manifest.empty()) {
    throw DataError("there is no set in this file: it has no manifest", where,
                    "name the folder of a set, or a file that oscar convert wrote");
  }
  Set set = set_of_one_file(manifest, where);
  RotationPart& part = set.rotations.begin()->second;
  fill_layers(part, tensors, where);
  for (const auto& found : {manifest_disagreements(set), disagreements(part)}) {
    if (!found.empty()) throw DataError(found.front(), where, "fetch or convert the set again; do not use this file");
  }
  require_finite(part, where);
  return set;
}

Set read_h5(const fs::path& path) {
  const Hdf5Reader file(path);
  std::string manifest;
  if (file.has(kManifestPath)) {
    const Tensor bytes = file.read(kManifestPath);
    manifest.assign(reinterpret_cast<const char*>(bytes.data.data()), bytes.data.size());
  }
  const auto disagreements = [&](const RotationPart& part) { return disagreements_of(file, part, true); };
  return set_from(manifest, lookup_in(file), disagreements, path.string());
}

Set read_safetensors(const fs::path& path) {
  const SafetensorsFile file(path);
  const auto manifest = file.metadata().find(kManifestName);
  const auto surplus = [&](const RotationPart& part) {
    std::vector<std::string> out;
    std::set<std::string> known;
    for (const auto& [name, tensor] : tensors_of(part)) known.insert(name);
    for (const auto& [name, tensor] : file.tensors()) {
      if (!known.contains(name)) out.push_back("the tensor " + name + " is in no set with this manifest");
    }
    return out;
  };
  const TensorLookup lookup{[&](const std::string& name) { return file.tensors().contains(name); },
                            [&](const std::string& name) { return file.load(name); }};
  return set_from(manifest == file.metadata().end() ? "" : manifest->second, lookup, surplus, path.string());
}

}  // namespace

void require_finite(const RotationPart& part, const std::string& where) {
  const auto finite = [](const std::vector<double>& values) {
    return std::ranges::all_of(values, [](double x) { return std::isfinite(static_cast<float>(x)); });
  };
  const auto sane = [](const std::vector<double>& values) {
    return std::ranges::all_of(values, [](double x) { return std::abs(x) <= 1e6; });
  };
  for (const LayerRotation& layer : part.layers) {
    for (const SideTransform* side : {&layer.key, &layer.value}) {
      if (sane(side->rotation.data) && sane(side->read_rotation.data) && finite(side->mean) &&
          finite(side->eigenvalues) && finite(side->covariance.data) && finite(side->query_covariance.data)) {
        continue;
      }
      throw DataError("layer " + std::to_string(layer.layer_id) + " has values that are NaN, infinite or beyond reason",
                      where, "fit the set again, or ask its maker");
    }
  }
}

void write_part_h5(const fs::path& path, const RotationPart& part) { write_h5(path, part, ""); }

void fill_from_h5(const fs::path& path, RotationPart& part) {
  const Hdf5Reader file(path);
  fill_layers(part, lookup_in(file), path.string());
}

std::vector<std::string> h5_disagreements(const fs::path& path, const RotationPart& part) {
  // The matrices of `part` came from this file, which was tried in another process then.
  return disagreements_of(Hdf5Reader(path, Hdf5Source::kOwn), part, false);
}

void write_set_file(const fs::path& path, SetFileKind kind, const Set& set) {
  const RotationPart& part = set.rotations.begin()->second;
  const std::string manifest = make_manifest(set, Json::array()).dump(1);
  if (kind == SetFileKind::kH5) return write_h5(path, part, manifest);
  write_safetensors(path, tensors_of(part), {{kSchemaName, kSetSchema}, {kManifestName, manifest}}, Checksums::kYes);
}

Set read_set_file(const fs::path& path, SetFileKind kind) {
  return kind == SetFileKind::kH5 ? read_h5(path) : read_safetensors(path);
}

}  // namespace oscar
