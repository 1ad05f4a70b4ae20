// SPDX-License-Identifier: MIT
#include "set/set_file.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <span>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
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

void fill_layers(RotationPart& set, const TensorLookup& tensors, char separator, const std::string& where) {
  for (LayerRotation& layer : set.layers) {
    fill_side(layer.key, true, tensors, side_prefix(layer.layer_id, true, separator), where);
    fill_side(layer.value, false, tensors, side_prefix(layer.layer_id, false, separator), where);
  }
}

using Attributes = std::map<std::string, Hdf5Attribute>;

Attributes root_attributes(const RotationPart& set, const std::string& version) {
  return {{"schema", "oscar.rotation_set.v1"},
          {"oscar_version", version},
          {"model_id", set.model.id},
          {"model_config_sha256", set.model.config_sha256},
          {"calibration_data_sha256", set.calibration.data_sha256},
          {"calibration_tokens", set.calibration.tokens},
          {"recipe", recipe_of(set).dump()},
          {"key_objective", set.key_objective},
          {"value_objective", set.value_objective},
          {"sink", std::int64_t{set.windows.sink}},
          {"recent", std::int64_t{set.windows.recent}},
          {"codec", std::string(name_of(set.key_codec.grid))},
          {"key_levels", std::int64_t{set.key_codec.levels}},
          {"value_levels", std::int64_t{set.value_codec.levels}},
          {"group_size", std::int64_t{set.key_codec.group_size}},
          {"scale_dtype", std::string(name_of(set.key_codec.scale_dtype))}};
}

/// The attributes that a set's file has, by the path of their object.
std::map<std::string, Attributes> attributes_of(const RotationPart& set, const std::string& version) {
  std::map<std::string, Attributes> all{{"/", root_attributes(set, version)}};
  for (const LayerRotation& layer : set.layers) {
    if (!set.has_clip_ratios) break;
    const std::string group = "/layers/" + std::to_string(layer.layer_id);
    all[group + "/key"]["clip_ratio"] = layer.key.clip_ratio;
    all[group + "/value"]["clip_ratio"] = layer.value.clip_ratio;
  }
  return all;
}

using Names = std::set<std::string>;

/// The names that stand in each group of a file with the tensors of `set`, and those of its attributes. A dataset has
/// an entry without names.
std::map<std::string, Names> tree_of(const std::vector<std::pair<std::string, Tensor>>& tensors, bool alone) {
  std::map<std::string, Names> tree{{"/", {}}};
  for (const auto& [name, tensor] : tensors) {
    for (fs::path at = "/" + name; at.has_relative_path(); at = at.parent_path()) {
      (void)tree[at.string()];
      tree[at.parent_path().string()].insert(at.filename().string());
    }
  }
  if (alone) tree["/"].insert("manifest"), tree["/manifest"];
  return tree;
}

void compare_names(const std::string& object, const std::string& what, const std::vector<std::string>& found,
                   const Names& wanted, std::vector<std::string>& out) {
  const Names there(found.begin(), found.end());
  for (const std::string& name : there) {
    if (wanted.contains(name)) continue;
    out.push_back("rotations.h5: " + object + " has " + what + "\"" + name + "\", which no set has");
  }
  for (const std::string& name : wanted) {
    if (!there.contains(name)) out.push_back("rotations.h5: " + object + " lacks " + what + "\"" + name + "\"");
  }
}

/// alone: the manifest goes into it, as a dataset of bytes.
void write_set_h5(const fs::path& path, const RotationPart& set, bool alone) {
  Hdf5Writer file(path);
  const auto attributes = attributes_of(set, kVersion);
  const auto write_attributes = [&](const std::string& object) {
    for (const auto& [name, value] : attributes.at(object)) file.attribute(object, name, value);
  };
  write_attributes("/");
  for (const auto& [name, tensor] : tensors_of(set, '/')) file.write("/" + name, tensor);
  for (const auto& [object, unused] : attributes) {
    if (object != "/") write_attributes(object);
  }
  if (alone) {
    const std::string manifest = make_manifest(set, Json::array()).dump(1);
    Tensor bytes(DType::kU8, {std::ssize(manifest)});
    std::ranges::copy(std::as_bytes(std::span(manifest)), bytes.data.begin());
    file.write("/manifest", bytes);
  }
  file.commit();
}

/// A clause for each attribute, tensor or object of the file that does not follow from `set`.
std::vector<std::string> h5_disagreements(const Hdf5Reader& file, const RotationPart& set, bool alone) {
  std::vector<std::string> out;
  const auto tensors = tensors_of(set, '/');
  auto attributes = attributes_of(set, set.manifest.value("oscar_version", ""));
  for (const auto& [object, members] : tree_of(tensors, alone)) {
    if (!file.has(object)) continue;  // its group lacks it
    if (!members.empty()) compare_names(object, "", file.members(object), members, out);
    Names names;
    for (const auto& [name, value] : attributes[object]) {
      names.insert(name);
      if (!file.has_attribute(object, name) || file.attribute(object, name) == value) continue;
      out.push_back("rotations.h5: the attribute \"" + name + "\" of " + object + " is not what the manifest says");
    }
    compare_names(object, "the attribute ", file.attribute_names(object), names, out);
  }
  for (const auto& [name, tensor] : tensors) {
    if (file.has("/" + name) && !(file.read("/" + name) == tensor)) {
      out.push_back("rotations.h5: " + name + " is not what the manifest and the other files say");
    }
  }
  return out;
}

/// Looks at a file without a manifest, whose matrices `set` has. Throws DataError if the file has tensors beside them,
/// or attributes of write_set_h5() with another type, or with values that no set has.
void require_bare_h5(const Hdf5Reader& file, const RotationPart& set, const std::string& where) {
  const auto fail = [&](const std::string& what) { throw DataError(what, where, "write or fetch the file again"); };
  std::vector<std::string> odd;
  for (const auto& [object, members] : tree_of(tensors_of(set, '/'), false)) {
    if (!members.empty()) compare_names(object, "", file.members(object), members, odd);
  }
  if (!odd.empty()) fail(odd.front());
  RotationPart told = set;  // with what the attributes say
  const auto number = [&](const char* name, int& to) {
    if (!file.has_attribute("/", name)) return;
    const auto value = std::get<std::int64_t>(file.attribute("/", name));
    if (value < 0 || value > std::numeric_limits<int>::max()) fail(std::string("no set has this ") + name);
    to = static_cast<int>(value);
  };
  const Attributes usual = root_attributes({}, "");
  for (const std::string& name : file.attribute_names("/")) {
    const auto known = usual.find(name);
    if (known == usual.end() || file.attribute("/", name).index() == known->second.index()) continue;
    fail("the attribute \"" + name + "\" is of a wrong type");
  }
  number("sink", told.windows.sink), number("recent", told.windows.recent);
  number("key_levels", told.key_codec.levels), number("value_levels", told.value_codec.levels);
  number("group_size", told.key_codec.group_size);
  int tokens = 0;
  number("calibration_tokens", tokens);
  told.has_clip_ratios = true;
  for (LayerRotation& layer : told.layers) {
    for (const auto& [name, side] : {std::pair{"/key", &layer.key}, {"/value", &layer.value}}) {
      const std::string object = "/layers/" + std::to_string(layer.layer_id) + name;
      if (!file.has_attribute(object, "clip_ratio")) continue;
      const Hdf5Attribute ratio = file.attribute(object, "clip_ratio");
      const auto* value = std::get_if<double>(&ratio);
      if (value == nullptr) fail("the attribute \"clip_ratio\" of " + object + " is of a wrong type");
      side->clip_ratio = *value;
    }
  }
  validate_json(make_manifest(told, Json::array()), "oscar.rotation_set.v1", where);
}

/// What a file tells about itself: the manifest if it has one, else a few texts, and the names of its tensors.
struct Contents {
  std::string manifest;
  std::map<std::string, std::string> texts;
  std::vector<std::string> tensors;  // "layers.0.key.rotation"; of an HDF5 file, the layers' rotations only
  char separator = '.';
  TensorLookup lookup;
  /// Beside the manifest, if there is one.
  std::function<std::vector<std::string>(const RotationPart&)> disagreements;
};

std::map<std::string, std::string> metadata_of(const RotationPart& set) {
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

RotationPart set_from(const Contents& contents, const std::string& where) {
  RotationPart set;
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
std::vector<std::string> named_disagreements(const Contents& contents, const RotationPart& set) {
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

RotationPart read_h5(const fs::path& path) {
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
  contents.disagreements = [&](const RotationPart& set) {
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

RotationPart read_safetensors(const fs::path& path) {
  const SafetensorsFile file(path);
  Contents contents = contents_of(file);
  contents.disagreements = [&](const RotationPart& set) { return named_disagreements(contents, set); };
  return set_from(contents, path.string());
}

}  // namespace

std::vector<NamedTensor> tensors_of(const RotationPart& set, char separator) {
  std::vector<NamedTensor> out;
  for (const LayerRotation& layer : set.layers) {
    append_side(layer.key, true, side_prefix(layer.layer_id, true, separator), out);
    append_side(layer.value, false, side_prefix(layer.layer_id, false, separator), out);
  }
  return out;
}

void require_finite(const RotationPart& set, const std::string& where) {
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

void write_set_file(const fs::path& path, SetFileKind kind, const RotationPart& set, bool alone) {
  if (kind == SetFileKind::kH5) return write_set_h5(path, set, alone);
  const auto tensors = tensors_of(set, '.');
  std::map<std::string, std::string> metadata = metadata_of(set);
  if (alone) metadata["manifest"] = make_manifest(set, Json::array()).dump(1);
  write_safetensors(path, tensors, metadata, alone ? Checksums::kYes : Checksums::kNo);  // else the manifest has one
}

void fill_from_h5(const fs::path& path, RotationPart& set) {
  const Hdf5Reader file(path);
  fill_layers(set, lookup_in(file), '/', path.string());
}

void fill_from_safetensors(const fs::path& path, RotationPart& set) {
  const SafetensorsFile file(path);
  fill_layers(set, contents_of(file).lookup, '.', path.string());
}

std::vector<std::string> h5_disagreements(const fs::path& path, const RotationPart& set) {
  // The matrices of `set` came from this file, which was tried in another process then.
  return h5_disagreements(Hdf5Reader(path, Hdf5Source::kOwn), set, false);
}

std::vector<std::string> safetensors_disagreements(const fs::path& path, const RotationPart& set) {
  const SafetensorsFile file(path);
  std::vector<std::string> out = named_disagreements(contents_of(file), set);
  for (const auto& [name, tensor] : tensors_of(set, '.')) {
    if (!file.tensors().contains(name) || !(file.at(name).copy() == tensor)) out.push_back(name + " is another tensor");
  }
  return out;
}

RotationPart read_set_file(const fs::path& path, SetFileKind kind) {
  return kind == SetFileKind::kH5 ? read_h5(path) : read_safetensors(path);
}

}  // namespace oscar
