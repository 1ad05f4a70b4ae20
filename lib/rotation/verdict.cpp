// SPDX-License-Identifier: MIT
#include "rotation/verdict.hpp"

namespace oscar {

std::string name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAccepted:
      return "accepted";
    case Verdict::kRejected:
      return "rejected";
    default:
      return "not_measured";
  }
}

std::optional<Verdict> recorded_verdict(const Json& manifest) {
  const Json verification = manifest.is_object() ? manifest.value("verification", Json()) : Json();
  const Json recorded = verification.is_object() ? verification.value("verdict", Json()) : Json();
  for (const Verdict verdict : {Verdict::kAccepted, Verdict::kRejected, Verdict::kNotMeasured}) {
    if (recorded == name_of(verdict)) return verdict;
  }
  return std::nullopt;
}

std::string claim_of(std::optional<Verdict> recorded) {
  if (!recorded) return "not verified";
  if (*recorded == Verdict::kNotMeasured) return "not measured by its maker";
  return name_of(*recorded) + " by its maker's verify";
}

}  // namespace oscar
