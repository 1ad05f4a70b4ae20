// SPDX-License-Identifier: MIT
#include "set/set_file.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <span>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "set/manifest.hpp"
#include "set/names.hpp"
#include "set/one_truth.hpp"
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

void fill_layers(RotationPart& part, const TensorLookup& tensors, char separator, const std::string& where) {
  for (LayerRotation& layer : part.layers) {
    fill_side(layer.key, true, tensors, side_prefix(layer.layer_id, true, separator), where);
    fill_side(layer.value, false, tensors, side_prefix(layer.layer_id, false, separator), where);
  }
}

std::vector<NamedTensor> tensors_of(const RotationPart& part, char separator) {
  std::vector<NamedTensor> out;
  for (const LayerRotation& layer : part.layers) {
    append_side(layer.key, true, side_prefix(layer.layer_id, true, separator), out);
    append_side(layer.value, false, side_prefix(layer.layer_id, false, separator), out);
  }
  return out;
}

/// What a file says of itself beside tensors: attributes of HDF5's root, or metadata.
std::map<std::string, std::string> texts_of(const RotationPart& part) {
  return {{"schema", kSetSchema},
          {"model_id", part.model.id},
          {"key_objective", part.key_objective},
          {"value_objective", part.value_objective}};
}

using Names = std::set<std::string>;

void compare_names(const std::string& object, const std::string& what, const std::vector<std::string>& found,
                   const Names& wanted, bool all, std::vector<std::string>& out) {
  const Names there(found.begin(), found.end());
  for (const std::string& name : there) {
    if (!wanted.contains(name)) out.push_back(object + " has " + what + "\"" + name + "\", which no set has");
  }
  for (const std::string& name : wanted) {
    if (all && !there.contains(name)) out.push_back(object + " lacks " + what + "\"" + name + "\"");
  }
}

/// The names that stand in each group of an HDF5 file with these tensors. A dataset has an entry without names.
std::map<std::string, Names> tree_of(const std::vector<NamedTensor>& tensors, bool has_manifest) {
  std::map<std::string, Names> tree{{"/", {}}};
  for (const auto& [name, tensor] : tensors) {
    for (fs::path at = "/" + name; at.has_relative_path(); at = at.parent_path()) {
      (void)tree[at.string()];
      tree[at.parent_path().string()].insert(at.filename().string());
    }
  }
  if (has_manifest) tree["/"].insert("manifest"), tree["/manifest"];
  return tree;
}

void write_h5(const fs::path& path, const RotationPart& part, const std::string& manifest) {
  Hdf5Writer file(path);
  for (const auto& [name, text] : texts_of(part)) file.attribute("/", name, text);
  for (const auto& [name, tensor] : tensors_of(part, '/')) file.write("/" + name, tensor);
  if (!manifest.empty()) {
    Tensor bytes(DType::kU8, {std::ssize(manifest)});
    std::ranges::copy(std::as_bytes(std::span(manifest)), bytes.data.begin());
    file.write("/manifest", bytes);
  }
  file.commit();
}

/// A clause for each attribute, tensor or object of the file that does not follow from `part`. told: a manifest tells
/// of it; else the file may lack attributes.
std::vector<std::string> disagreements_of(const Hdf5Reader& file, const RotationPart& part, bool told) {
  std::vector<std::string> out;
  const auto tensors = tensors_of(part, '/');
  const auto texts = texts_of(part);
  for (const auto& [object, members] : tree_of(tensors, told && file.has("/manifest"))) {
    if (!file.has(object)) continue;  // its group lacks it
    if (!members.empty()) compare_names(object, "", file.members(object), members, true, out);
    Names names;
    for (const auto& [name, text] : texts) {
      if (object == "/") names.insert(name);
    }
    compare_names(object, "the attribute ", file.attribute_names(object), names, told, out);
  }
  for (const auto& [name, text] : texts) {
    if (!file.has_attribute("/", name) || file.attribute("/", name) == Hdf5Attribute(text)) continue;
    out.push_back("the attribute \"" + name + "\" is not what the manifest says");
  }
  for (const auto& [name, tensor] : tensors) {
    if (file.has("/" + name) && !(file.read("/" + name) == tensor)) {
      out.push_back(name + " is not what the manifest and the other files say");
    }
  }
  return out;
}

/// What a file that stands alone tells about itself: the manifest if it has one, else a few texts, and the names of its
/// tensors.
struct Contents {
  std::string manifest;
  std::map<std::string, std::string> texts;
  std::vector<std::string> tensors;  // "layers.0.key.rotation"; of an HDF5 file, the layers only: "layers/0/"
  char separator = '.';
  TensorLookup lookup;
  /// told: by a manifest.
  std::function<std::vector<std::string>(const RotationPart&, bool told)> disagreements;
};

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

Set set_from(const Contents& contents, const std::string& where) {
  const bool told = !contents.manifest.empty();
  Set set;
  if (told) {
    set = set_of_one_file(contents.manifest, where);
  } else {
    const auto text = [&](const char* name, const char* without) {
      const auto found = contents.texts.find(name);
      return found == contents.texts.end() ? std::string(without) : plain_text(found->second, name, where);
    };
    RotationPart part;
    part.key_objective = known_objective(text("key_objective", "unknown"), where);
    part.value_objective = known_objective(text("value_objective", "unknown"), where);
    part.model.id = text("model_id", "");
    for (const int id : layer_ids(contents)) part.layers.push_back({id, {}, {}});
    set = set_of(std::move(part));
  }
  RotationPart& part = set.rotations.begin()->second;
  if (part.layers.empty()) {
    throw DataError("there are no rotations in this file", where, "\"oscar inspect\" says what it is");
  }
  fill_layers(part, contents.lookup, contents.separator, where);
  if (told) require_agreement(manifest_disagreements(set), where);
  require_agreement(contents.disagreements(part, told), where);
  require_finite(part, where);
  return set;
}

/// Tensors by name, and texts beside the manifest, that are not those which write_set_file() writes.
std::vector<std::string> named_disagreements(const Contents& contents, const RotationPart& part, bool told) {
  std::vector<std::string> out;
  Names known;
  for (const auto& [name, tensor] : tensors_of(part, contents.separator)) known.insert(name);
  for (const std::string& name : contents.tensors) {
    if (!known.contains(name)) out.push_back("the tensor " + name + " is in no set with this manifest");
  }
  const auto usual = texts_of(part);
  for (const auto& [name, text] : contents.texts) {
    if (!told || name == "manifest" || name == "sha256") continue;  // the reader has looked at the checksums
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

Set read_h5(const fs::path& path) {
  const Hdf5Reader file(path);
  Contents contents;
  contents.separator = '/';
  contents.lookup = lookup_in(file);
  if (file.has("/manifest")) {
    const Tensor bytes = file.read("/manifest");
    contents.manifest.assign(reinterpret_cast<const char*>(bytes.data.data()), bytes.data.size());
  }
  for (const auto& [name, unused] : texts_of({})) {
    if (!file.has_attribute("/", name)) continue;
    const Hdf5Attribute value = file.attribute("/", name);
    if (const auto* text = std::get_if<std::string>(&value)) contents.texts[name] = *text;
  }
  contents.disagreements = [&](const RotationPart& part, bool told) { return disagreements_of(file, part, told); };
  if (file.has("/layers")) {
    for (const std::string& id : file.members("/layers")) contents.tensors.push_back("layers/" + id + "/");
  }
  return set_from(contents, path.string());
}

Set read_safetensors(const fs::path& path) {
  const SafetensorsFile file(path);
  Contents contents;
  contents.texts = file.metadata();
  if (const auto manifest = contents.texts.find("manifest"); manifest != contents.texts.end()) {
    contents.manifest = manifest->second;
  }
  for (const auto& [name, tensor] : file.tensors()) contents.tensors.push_back(name);
  contents.lookup = {[&file](const std::string& name) { return file.tensors().contains(name); },
                     [&file](const std::string& name) { return file.load(name); }};
  contents.disagreements = [&](const RotationPart& part, bool told) {
    return named_disagreements(contents, part, told);
  };
  return set_from(contents, path.string());
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

void write_part_h5(const fs::path& path, const RotationPart& part) { write_h5(path, part, ""); }

void fill_from_h5(const fs::path& path, RotationPart& part) {
  const Hdf5Reader file(path);
  fill_layers(part, lookup_in(file), '/', path.string());
}

std::vector<std::string> h5_disagreements(const fs::path& path, const RotationPart& part) {
  // The matrices of `part` came from this file, which was tried in another process then.
  return disagreements_of(Hdf5Reader(path, Hdf5Source::kOwn), part, true);
}

void write_set_file(const fs::path& path, SetFileKind kind, const Set& set) {
  const RotationPart& part = set.rotations.begin()->second;
  const std::string manifest = make_manifest(set, Json::array()).dump(1);
  if (kind == SetFileKind::kH5) return write_h5(path, part, manifest);
  auto texts = texts_of(part);
  texts["manifest"] = manifest;
  write_safetensors(path, tensors_of(part, '.'), texts, Checksums::kYes);
}

Set read_set_file(const fs::path& path, SetFileKind kind) {
  return kind == SetFileKind::kH5 ? read_h5(path) : read_safetensors(path);
}

}  // namespace oscar
