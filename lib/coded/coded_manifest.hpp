// SPDX-License-Identifier: MIT
// manifest.json of a coded set (oscar.rotation_set.v2) to and from the value type. Matrices and formats are in
// coded.safetensors.
#pragma once

#include <filesystem>
#include <string>

#include "coded/coded_set.hpp"

namespace oscar {

inline constexpr const char* kCodedSchema = "oscar.rotation_set.v2";

/// Whether a folder holds a coded set: it has a manifest that says so.
[[nodiscard]] bool is_coded_set(const std::filesystem::path& folder);

/// Returns the manifest of `set` with this list of files.
[[nodiscard]] Json coded_manifest(const CodedSet& set, Json files);

/// Returns the set without what coded.safetensors holds: layers have their ids. Throws DataError if the manifest does
/// not fit its schema.
[[nodiscard]] CodedSet coded_set_from_manifest(const Json& manifest, const std::string& where);

}  // namespace oscar
