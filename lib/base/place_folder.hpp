// SPDX-License-Identifier: MIT
// The last step of a folder under construction, for those that keep one across runs; see AtomicFolder for the others.
#pragma once

#include <filesystem>

namespace oscar {

/// Syncs every file of the folder `fresh` and gives it the name `target`; a folder that was there is swapped out and
/// removed. Both must be on one file system. Callers hold a lock. Throws IoError.
void place_folder(const std::filesystem::path& fresh, const std::filesystem::path& target);

}  // namespace oscar
