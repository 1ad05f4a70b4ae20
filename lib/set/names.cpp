// SPDX-License-Identifier: MIT
#include "set/names.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include "base/errors.hpp"
#include "base/text.hpp"

namespace oscar {
namespace {

constexpr std::array<std::string_view, 6> kObjectives{"qqt", "ktk", "fisher", "sst", "vtv", "mixed"};
constexpr std::array<std::string_view, 3> kWithoutComposition{"hadamard", "uresidual", "unknown"};

/// Names of upstream's later fitters, of whose matrices we know no formula.
constexpr std::array<std::string_view, 12> kOfOthers{
    "perhead",        "oscar2_perhead",  "oscar2_center",    "oscar2_whiten",       "oscar2_nova",   "oscar2_flat",
    "oscar2_stretch", "oscar2_v_pre_wo", "oscar2_v_post_wo", "oscar2_v_post_wo_hr", "oscar2_optr_k", "oscar2_optr_v"};

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

bool is_objective(std::string_view name) {
  if (std::ranges::find(kWithoutComposition, name) != kWithoutComposition.end()) return true;
  constexpr std::string_view kStretch = "stretch_";
  if (name.starts_with(kStretch)) name.remove_prefix(kStretch.size());
  const std::size_t underscore = name.find('_');
  if (underscore == std::string_view::npos) return false;
  return std::ranges::find(kObjectives, name.substr(0, underscore)) != kObjectives.end() &&
         std::ranges::find(composition_names(), name.substr(underscore + 1)) != composition_names().end();
}

}  // namespace

const std::vector<std::string>& composition_names() {
  static const std::vector<std::string> names{"plain", "pbr",     "br",      "br_h128", "r_h",
                                              "h_pbr", "h_r_pbr", "h_pbr_r", "r_h_pbr"};
  return names;
}

std::string known_objective(std::string name, const std::string& where) {
  if (std::ranges::find(kOfOthers, name) != kOfOthers.end()) return "unknown";
  if (is_objective(name)) return name;
  throw DataError("unknown objective \"" + printable_line(std::string_view(name).substr(0, 60)) + "\"", where,
                  "use a file of a known fitter: objectives are like qqt_r_h_pbr, sst_r_h_pbr or hadamard");
}

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
                    "name a set, or a folder with k_rotation*.pt and v_rotation*.pt of the same fit");
  }
  if (wanted.empty() && pairs.size() == 1) return pairs.front();
  const auto found = std::ranges::find(pairs, wanted, &RotationPair::name);
  if (found != pairs.end()) return *found;
  const std::string names = joined(pairs, ", ", [](const RotationPair& pair) { return printable_line(pair.name); });
  throw UsageError(wanted.empty() ? "the folder holds several pairs of rotations: " + names
                                  : "the folder has no pair \"" + wanted + "\", but " + names,
                   where, "choose one: oscar pull or oscar convert with --pair NAME");
}

}  // namespace oscar
