// SPDX-License-Identifier: MIT
#include "rotation/objective.hpp"

#include <algorithm>
#include <array>

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

}  // namespace

const std::vector<std::string>& composition_names() {
  static const std::vector<std::string> names{"plain", "pbr",     "br",      "br_h128", "r_h",
                                              "h_pbr", "h_r_pbr", "h_pbr_r", "r_h_pbr"};
  return names;
}

bool is_objective(std::string_view name) {
  if (std::ranges::find(kWithoutComposition, name) != kWithoutComposition.end()) return true;
  constexpr std::string_view kStretch = "stretch_";
  if (name.starts_with(kStretch)) name.remove_prefix(kStretch.size());
  const std::size_t underscore = name.find('_');
  if (underscore == std::string_view::npos) return false;
  return std::ranges::find(kObjectives, name.substr(0, underscore)) != kObjectives.end() &&
         std::ranges::find(composition_names(), name.substr(underscore + 1)) != composition_names().end();
}

std::string known_objective(std::string name, const std::string& where) {
  if (std::ranges::find(kOfOthers, name) != kOfOthers.end()) return "unknown";
  if (is_objective(name)) return name;
  throw DataError("unknown objective \"" + printable_line(std::string_view(name).substr(0, 60)) + "\"", where,
                  "use a file of a known fitter: objectives are like qqt_r_h_pbr, sst_r_h_pbr or hadamard");
}

}  // namespace oscar
