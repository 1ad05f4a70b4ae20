// SPDX-License-Identifier: MIT
#include "method/recipe.hpp"

#include <fmt/format.h>

namespace oscar {

std::string Recipe::key_name() const {
  if (kind == Kind::kHadamard) return "hadamard";
  return fmt::format("{}{}_{}", kind == Kind::kStretch ? "stretch_" : "", name_of(key_objective), name_of(composition));
}

std::string Recipe::value_name() const {
  return kind == Kind::kHadamard ? "hadamard" : fmt::format("sst_{}", name_of(composition));
}

std::set<Moment> Recipe::moments() const {
  if (kind == Kind::kHadamard) return {};
  std::set<Moment> wanted{key_objective, Moment::kSst, Moment::kQqt};
  if (kind == Kind::kStretch && key_objective == Moment::kQqt) wanted.insert(Moment::kKtk);
  if (center) wanted.insert(Moment::kKeys);
  return wanted;
}

}  // namespace oscar
