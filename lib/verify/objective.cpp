// SPDX-License-Identifier: MIT
#include "verify/subject.hpp"

namespace oscar {

std::string objective_name(const std::string& objective) { return objective.substr(0, objective.find('_')); }

std::string composition_name(const std::string& objective) {
  const std::size_t underscore = objective.find('_');
  return underscore == std::string::npos ? "" : objective.substr(underscore + 1);
}

}  // namespace oscar
