// SPDX-License-Identifier: MIT
#include "rotation/set_h5.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/version.hpp"
#include "rotation/manifest.hpp"
#include "rotation/set_file.hpp"

namespace oscar {
namespace {

using Attributes = std::map<std::string, Hdf5Attribute>;

Attributes root_attributes(const RotationSet& set, const std::string& version) {
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
std::map<std::string, Attributes> attributes_of(const RotationSet& set, const std::string& version) {
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

}  // namespace

void write_set_h5(const std::filesystem::path& path, const RotationSet& set, bool alone) {
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
  if (alone) file.write("/manifest", bytes_tensor(make_manifest(set, Json::array()).dump(1)));
  file.commit();
}

std::vector<std::string> h5_disagreements(const Hdf5Reader& file, const RotationSet& set, bool alone) {
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

void require_bare_h5(const Hdf5Reader& file, const RotationSet& set, const std::string& where) {
  const auto fail = [&](const std::string& what) { throw DataError(what, where, "write or fetch the file again"); };
  std::vector<std::string> odd;
  for (const auto& [object, members] : tree_of(tensors_of(set, '/'), false)) {
    if (!members.empty()) compare_names(object, "", file.members(object), members, odd);
  }
  if (!odd.empty()) fail(odd.front());
  RotationSet told = set;  // with what the attributes say
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

}  // namespace oscar
