// SPDX-License-Identifier: MIT
// Rotation files of others in a repository of the Hugging Face Hub (remote/hub.hpp): which of them are wanted, with the
// sha256 (large files) or git's hash (small ones) that the hub tells of each; and the set that is made of them.
#pragma once

#include <string>
#include <vector>

#include "remote/hub.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {

/// Returns the files directly in the address's folder that may hold rotations, paths being their names; of several
/// pairs of .pt files those of `pair`. Throws DataError if there are none, UsageError if the pair is not there, or
/// several are and none is named.
[[nodiscard]] std::vector<FileDigest> rotation_files(const HubRepository& repository, const std::string& pair);

/// Makes a set in `set` of the rotation files in `files_folder`, which were fetched from `source`: .pt files of both
/// sides stay as they are, other shapes are converted. Throws DataError.
void make_set_of_files(const std::filesystem::path& files_folder, const std::filesystem::path& set,
                       const std::string& source);

}  // namespace oscar
