// SPDX-License-Identifier: MIT
#include "rotation/pairs.hpp"

#include <algorithm>
#include <functional>
#include <map>

#include "base/errors.hpp"
#include "base/text.hpp"

namespace oscar {
namespace {

/// File names by what follows "k_rotation" or "v_rotation".
using SideFiles = std::map<std::string, std::string>;

SideFiles files_of_side(const std::vector<std::string>& files, const std::string& prefix) {
  SideFiles found;
  for (const std::string& file : files) {
    if (!file.starts_with(prefix) || !file.ends_with(".pt") || file.size() < prefix.size() + 3) continue;
    std::string name = file.substr(prefix.size(), file.size() - prefix.size() - 3);
    if (name.starts_with("_")) name.erase(0, 1);
    found[name.empty() ? "plain" : name] = file;
  }
  return found;
}

/// "r_h_pbr" of "qqt_r_h_pbr".
std::string composition_of(const std::string& name) { return name.substr(std::min(name.find('_'), name.size())); }

}  // namespace

std::vector<RotationPair> rotation_pairs(const std::vector<std::string>& files) {
  SideFiles keys = files_of_side(files, "k_rotation"), values = files_of_side(files, "v_rotation");
  std::vector<RotationPair> pairs;
  const auto take = [&](const std::function<bool(const std::string& key, const std::string& value)>& belong) {
    for (auto key = keys.begin(); key != keys.end();) {
      const auto value = std::ranges::find_if(values, [&](const auto& v) { return belong(key->first, v.first); });
      if (value == values.end()) {
        ++key;
        continue;
      }
      pairs.push_back({key->first, key->second, value->second});
      values.erase(value);
      key = keys.erase(key);
    }
  };
  take([](const std::string& key, const std::string& value) { return key == value; });
  take([](const std::string& key, const std::string& value) {
    return !composition_of(key).empty() && composition_of(key) == composition_of(value);
  });
  if (keys.size() == 1 && values.size() == 1) take([](const auto&, const auto&) { return true; });
  std::ranges::sort(pairs, {}, &RotationPair::name);
  return pairs;
}

RotationPair choose_pair(const std::vector<std::string>& files, const std::string& wanted, const std::string& where) {
  const std::vector<RotationPair> pairs = rotation_pairs(files);
  if (pairs.empty()) {
    const bool keys = !files_of_side(files, "k_rotation").empty();
    throw DataError(std::string("no ") + (keys ? "v" : "k") + "_rotation*.pt that belongs to another file", where,
                    "name a rotation set, or a folder with k_rotation*.pt and v_rotation*.pt of the same fit");
  }
  if (wanted.empty() && pairs.size() == 1) return pairs.front();
  std::string names;
  for (const RotationPair& pair : pairs) {
    if (pair.name == wanted) return pair;
    names += (names.empty() ? "" : ", ") + printable_line(pair.name);
  }
  throw UsageError(wanted.empty() ? "the folder holds several pairs of rotations: " + names
                                  : "the folder has no pair \"" + wanted + "\", but " + names,
                   where, "choose one: oscar pull or oscar convert with --pair NAME");
}

}  // namespace oscar
