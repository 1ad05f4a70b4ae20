// SPDX-License-Identifier: MIT
// manifest.json of a rotation set (oscar.rotation_set.v1) to and from the value type. Matrices are elsewhere.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "rotation/rotation_set.hpp"

namespace oscar {

/// {"path", "sha256", "size"} of each file of `folder`, which are named relative to it.
[[nodiscard]] Json list_with_hashes(const std::filesystem::path& folder,
                                    const std::vector<std::filesystem::path>& files);

/// RotationSet::origin of a set that was read from `files`, which say nothing more than `set` holds.
[[nodiscard]] Json describe_origin(const RotationSet& set, const std::string& format,
                                   const std::vector<std::filesystem::path>& files);

/// The manifest of `set` with this file list; valid against the schema.
[[nodiscard]] Json make_manifest(const RotationSet& set, Json files);

/// Everything but the matrices: layers get their ids, clip ratios and scores. Throws DataError if the manifest does not
/// fit its schema.
[[nodiscard]] RotationSet set_from_manifest(const Json& manifest, const std::string& where);

/// Checks that every listed file is there, has its size and its sha256. Throws DataError that names the first that does
/// not.
void check_listed_files(const std::filesystem::path& folder, const Json& manifest);

}  // namespace oscar
