// SPDX-License-Identifier: MIT
// Writes the verify summary into the manifest of one of our sets. The rotation files and their hashes stay as they are.
#pragma once

#include <filesystem>

#include "base/json.hpp"

namespace oscar {

/// Replaces "verification" in <folder>/manifest.json, atomically. Throws DataError if there is no manifest of ours or a
/// file is not what it lists, IoError if it cannot be written.
void record_verification(const std::filesystem::path& folder, const Json& summary);

}  // namespace oscar
