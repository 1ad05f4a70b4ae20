// SPDX-License-Identifier: MIT
// manifest.json of a set (oscar.set.v1) to and from the value type. Matrices are elsewhere.
// It also has what `verify` can say of a set, and what a set's manifest says it said. The manifest is its maker's word:
// whoever must be sure verifies the set again.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "base/json.hpp"
#include "set/set.hpp"

namespace oscar {

/// "eigenvalues" of a side in the manifest: over all its spectra; effective_rank = exp of the entropy of the normalised
/// spectrum, mean over spectra. Null: no eigenvalues.
[[nodiscard]] Json summarize_spectrum(const SideTransform& side);

/// {"path", "sha256", "size"} of each file of `folder`, which are named relative to it.
[[nodiscard]] Json list_with_hashes(const std::filesystem::path& folder,
                                    const std::vector<std::filesystem::path>& files);

/// Set::origin of a set that was read from `files`, which say nothing more than `set` holds. has_codec: they name the
/// codec.
[[nodiscard]] Json describe_origin(const RotationPart& set, const std::string& format,
                                   const std::vector<std::filesystem::path>& files, bool has_codec = false);

/// `recipe`, with the name "unknown" if it has none.
[[nodiscard]] Json recipe_of(Json recipe);

/// The manifest of `set` with this file list; valid against the schema.
[[nodiscard]] Json make_manifest(const Set& set, Json files);

/// Everything but what the files of parts hold: layers get their ids, clip ratios and scores. Throws DataError
/// if the manifest does not fit its schema.
[[nodiscard]] Set set_from_manifest(const Json& manifest, const std::string& where);

/// set_from_manifest() of the manifest in a file that holds one part of rotations and nothing else. Throws DataError
/// for other parts.
[[nodiscard]] Set set_of_one_file(const std::string& manifest, const std::string& where);

/// Returns what a new set may replace, for an AtomicFolder: if `replace`, a folder that holds a set and
/// nothing but the files that its manifest lists; else nothing.
[[nodiscard]] RequireOurs replaceable_set(bool replace);

/// Returns what is wrong with the files of the manifest's list, at most a clause for each: its path, size or sha256.
[[nodiscard]] std::vector<std::string> defects_of_files(const std::filesystem::path& folder, const Json& manifest);
/// Throws DataError with the first of these defects, if there is one.
void check_listed_files(const std::filesystem::path& folder, const Json& manifest);

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
