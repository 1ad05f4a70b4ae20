// SPDX-License-Identifier: MIT
// Sets and zoos in repositories of the Hugging Face Hub (remote/hub.hpp). A set of ours is known by its manifest; what
// else lies there is listed by the tree API at one commit, with the sha256 (large files) or git's hash (small ones) of
// each file; files come from …/resolve/<commit>/…, which redirects large ones to another host. Non-goal: the xet
// protocol.
#pragma once

#include <string>
#include <vector>

#include "base/status.hpp"
#include "remote/hub.hpp"
#include "zoo/download.hpp"
#include "zoo/location.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {

/// Returns where a zoo is that is read: a folder, file://, http(s)://, or a folder on the Hub. Throws UsageError.
[[nodiscard]] StoreLocation zoo_location(const std::string& zoo);

/// The files directly in the folder, paths being their names. One small request for every thousand of them. Throws
/// TransportError, DataError.
[[nodiscard]] std::vector<FileDigest> list_hub_folder(Transport& hub, const HubAddress& address,
                                                      const TransferOptions& options, Status& status);

/// Makes a set in `set` of the rotation files in `files_folder`, which were fetched from `source`: .pt files of both
/// sides stay as they are, other shapes are converted. Throws DataError.
void make_set_of_files(const std::filesystem::path& files_folder, const std::filesystem::path& set,
                       const std::string& source);

/// Returns those of the files that may hold rotations; of several pairs of .pt files those of `pair`. Throws DataError
/// if there are none, UsageError if the pair is not there, or several are and none is named.
[[nodiscard]] std::vector<FileDigest> rotation_files(std::vector<FileDigest> files, const std::string& pair,
                                                     const HubAddress& address);

}  // namespace oscar
