// SPDX-License-Identifier: MIT
// manifest.json of a set (oscar.set.v1) to and from the value type. Matrices are elsewhere.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/atomic_file.hpp"
#include "set/set.hpp"

namespace oscar {

/// "eigenvalues" of a side in the manifest: over all its spectra; effective_rank = exp of the entropy of the normalised
/// spectrum, mean over spectra. Null: no eigenvalues.
[[nodiscard]] Json summarize_spectrum(const SideTransform& side);

/// {"path", "sha256", "size"} of each file of `folder`, which are named relative to it.
[[nodiscard]] Json list_with_hashes(const std::filesystem::path& folder,
                                    const std::vector<std::filesystem::path>& files);

/// Set::origin of a set that was read from `files`, which say nothing more than `set` holds.
[[nodiscard]] Json describe_origin(const RotationPart& set, const std::string& format,
                                   const std::vector<std::filesystem::path>& files);

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

}  // namespace oscar
