// SPDX-License-Identifier: MIT
#include "verify/subject.hpp"

namespace oscar {
namespace {

/// "qqt_r_h_pbr" of "stretch_qqt_r_h_pbr".
std::string without_prefix(const std::string& objective) {
  const std::string prefix = "stretch_";
  return objective.starts_with(prefix) ? objective.substr(prefix.size()) : objective;
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

bool fits_keys(const std::string& objective) {
  const std::string name = objective_name(objective);
  return name == "qqt" || name == "ktk" || name == "fisher";
}

bool fits_values(const std::string& objective) {
  const std::string name = objective_name(objective);
  return name == "sst" || name == "oto" || name == "vtv";
}

}  // namespace oscar
