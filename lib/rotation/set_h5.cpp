// SPDX-License-Identifier: MIT
#include "rotation/set_h5.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/errors.hpp"
#include "base/version.hpp"
#include "rotation/manifest.hpp"
#include "rotation/named_tensors.hpp"

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

/// The names that stand in each group of a file with these datasets. A dataset has an entry without names.
std::map<std::string, std::set<std::string>> tree_of(const std::vector<std::string>& datasets) {
  std::map<std::string, std::set<std::string>> tree{{"/", {}}};
  for (const std::string& name : datasets) {
    tree[name];
    for (std::size_t slash = name.rfind('/'), end = name.size(); end > 0;
         end = slash, slash = name.rfind('/', end - 1)) {
      tree[slash == 0 ? "/" : name.substr(0, slash)].insert(name.substr(slash + 1, end - slash - 1));
      if (slash == 0) break;
    }
  }
  return tree;
}

void compare_names(const std::string& object, const char* what, std::vector<std::string> found,
                   std::vector<std::string> wanted, std::vector<std::string>& out) {
  std::ranges::sort(found);
  std::ranges::sort(wanted);
  std::vector<std::string> odd;
  std::ranges::set_symmetric_difference(found, wanted, std::back_inserter(odd));
  for (const std::string& name : odd) {
    const bool missing = std::ranges::binary_search(wanted, name);
    out.push_back("rotations.h5: " + object + (missing ? " lacks " : " has ") + what + " \"" + name + "\"" +
                  (missing ? "" : ", which no set has"));
  }
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

bool is_later(const std::string& object, const std::string& name) {
  static const std::vector<std::string> later{"codec", "key_levels", "value_levels", "group_size", "scale_dtype"};
  return object == "/" && contains(later, name);
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
  std::vector<std::string> out, datasets;
  const auto tensors = tensors_of(set, '/');
  for (const auto& [name, tensor] : tensors) datasets.push_back("/" + name);
  if (alone) datasets.emplace_back("/manifest");
  const auto tree = tree_of(datasets);
  const auto attributes = attributes_of(set, set.manifest.value("oscar_version", ""));
  for (const auto& [object, members] : tree) {
    if (!file.has(object)) continue;  // its group lacks it
    if (!members.empty()) compare_names(object, "", file.members(object), {members.begin(), members.end()}, out);
    const auto wanted = attributes.find(object);
    std::vector<std::string> names;
    if (wanted != attributes.end()) {
      for (const auto& [name, value] : wanted->second) names.push_back(name);
    }
    const std::vector<std::string> found = file.attribute_names(object);
    // The first sets told less of their codec here.
    std::erase_if(names, [&, &object = object](const std::string& name) {
      return is_later(object, name) && !contains(found, name);
    });
    compare_names(object, "the attribute", found, names, out);
    for (const std::string& name : names) {
      if (!contains(found, name)) continue;
      if (file.attribute(object, name) == wanted->second.at(name)) continue;
      out.push_back("rotations.h5: the attribute \"" + name + "\" of " + object + " is not what the manifest says");
    }
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
  std::vector<std::string> datasets, odd;
  for (const auto& [name, tensor] : tensors_of(set, '/')) datasets.push_back("/" + name);
  for (const auto& [object, members] : tree_of(datasets)) {
    if (!members.empty()) compare_names(object, "", file.members(object), {members.begin(), members.end()}, odd);
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
