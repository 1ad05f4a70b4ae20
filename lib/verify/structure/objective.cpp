// SPDX-License-Identifier: MIT
#include "verify/structure/objective.hpp"

#include <algorithm>

#include "verify/structure/uncompose.hpp"

namespace oscar {
namespace {

/// "qqt_r_h_pbr" of "stretch_qqt_r_h_pbr".
std::string without_prefix(std::string objective) {
  const std::string prefix = "stretch_";
  if (objective.starts_with(prefix)) objective.erase(0, prefix.size());
  return objective;
}

}  // namespace

std::string objective_name(const std::string& objective) {
  const std::string name = without_prefix(objective);
  return name.substr(0, name.find('_'));
}

std::string composition_name(const std::string& objective) {
  const std::string name = without_prefix(objective);
  const std::size_t underscore = name.find('_');
  return underscore == std::string::npos ? "" : name.substr(underscore + 1);
}

bool is_hadamard(const SubjectSide& side, const SideTransform& transform) {
  const auto& values = transform.eigenvalues;
  const bool data_free = transform.covariance.count == 0 && !values.empty() &&
                         std::all_of(values.begin(), values.end(), [](double x) { return x == 1; });
  return side.objective == "hadamard" || (side.objective.starts_with("mixed_") && data_free);
}

bool has_constant_rotation(const SubjectSide& side, const SideTransform& transform) {
  return is_hadamard(side, transform) || verify::is_constant(composition_name(side.objective));
}

bool fits_keys(const std::string& objective) {
  const std::string name = objective_name(objective);
  return name == "qqt" || name == "ktk" || name == "fisher";
}

bool fits_values(const std::string& objective) {
  const std::string name = objective_name(objective);
  return name == "sst" || name == "vtv";
}

}  // namespace oscar
