// SPDX-License-Identifier: MIT
// What `verify` can say of a set, and what a set's manifest says it said. The manifest is its maker's word: whoever
// must be sure verifies the set again.
#pragma once

#include <optional>
#include <string>

#include "base/json.hpp"

namespace oscar {

enum class Verdict {
  kAccepted,    // no check failed, and figures of the set were held to limits
  kRejected,    // a check failed, or a figure is above its limit
  kNotMeasured  // no check failed, but no figure was held to a limit
};

/// Returns "accepted", "rejected" or "not_measured", as files say it.
[[nodiscard]] inline std::string name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAccepted:
      return "accepted";
    case Verdict::kRejected:
      return "rejected";
    default:
      return "not_measured";
  }
}

/// Returns the verdict in `verification` of a set's manifest, or of its summary in a zoo's index; with `reader` that
/// for this server or library. None if the set has not been verified, or if it says something else than name_of()
/// gives.
[[nodiscard]] inline std::optional<Verdict> recorded_verdict(const Json& manifest, const std::string& reader = "") {
  Json said = member(manifest, "verification");
  if (!reader.empty()) said = member(member(said, "readers"), reader);
  for (const Verdict verdict : {Verdict::kAccepted, Verdict::kRejected, Verdict::kNotMeasured}) {
    if (member(said, "verdict") == name_of(verdict)) return verdict;
  }
  return std::nullopt;
}

/// Returns the verdict in words for people, as a claim of whoever made the set: "accepted by its maker's verify", "not
/// verified".
[[nodiscard]] inline std::string claim_of(std::optional<Verdict> recorded) {
  if (!recorded) return "not verified";
  if (*recorded == Verdict::kNotMeasured) return "not measured by its maker";
  return name_of(*recorded) + " by its maker's verify";
}

/// Returns the verdict as files say it, or "not verified".
[[nodiscard]] inline std::string name_of(std::optional<Verdict> recorded) {
  return recorded ? name_of(*recorded) : "not verified";
}

}  // namespace oscar
