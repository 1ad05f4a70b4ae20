// SPDX-License-Identifier: MIT
#include "method/recipe.hpp"

namespace oscar {
namespace {

std::string rotation_name(Moment objective, Composition composition) {
  return std::string(name_of(objective)) + "_" + std::string(name_of(composition));
}

}  // namespace

std::string Recipe::key_name() const {
  if (kind == Kind::kHadamard) return "hadamard";
  return (kind == Kind::kStretch ? "stretch_" : "") + rotation_name(key_objective, composition);
}

std::string Recipe::value_name() const {
  if (kind == Kind::kHadamard) return "hadamard";
  return (stretches_values() ? "stretch_" : "") + rotation_name(value_objective, composition);
}

std::set<Moment> Recipe::moments() const {
  if (kind == Kind::kHadamard) return {};
  std::set<Moment> wanted{key_objective, value_objective};
  if (stretches_values()) wanted.insert(Moment::kVtv);
  if (value_objective == Moment::kSst) wanted.insert(Moment::kQqt);
  if (kind == Kind::kStretch && key_objective == Moment::kQqt) wanted.insert(Moment::kKtk);
  if (center) wanted.insert(Moment::kKeys);
  return wanted;
}

}  // namespace oscar
