// SPDX-License-Identifier: MIT
// Repositories on the Hugging Face Hub: hf://ORG/REPO/FOLDER[@REVISION], or hf://datasets/ORG/REPO/… . A set of ours
// is known by its manifest; what else lies there is listed by the tree API at one commit, with the sha256 (large files)
// or git's hash (small ones) of each file; files come from …/resolve/<commit>/…, which redirects large ones to another
// host. HF_ENDPOINT names another hub, HF_TOKEN is sent to it and to nobody else. Non-goal: the xet protocol.
#pragma once

#include <string>
#include <vector>

#include "base/json.hpp"
#include "base/status.hpp"
#include "zoo/download.hpp"
#include "zoo/location.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {

struct HubAddress {
  std::string repository;         // "ORG/REPO", or "datasets/ORG/REPO"
  std::string folder;             // in the repository; may be empty
  std::string revision = "main";  // branch, tag or commit

  /// As a user would write it.
  [[nodiscard]] std::string text() const;
};

[[nodiscard]] bool is_hub_address(const std::string& text);
/// Throws UsageError.
[[nodiscard]] HubAddress parse_hub_address(const std::string& text);

/// The hub itself: HF_ENDPOINT or https://huggingface.co, with HF_TOKEN (over TLS, or to this machine).
[[nodiscard]] StoreLocation hub_endpoint();
/// The files of a repository, below the endpoint: "ORG/REPO/resolve/<revision>".
[[nodiscard]] std::string hub_files(const HubAddress& address);

/// Where a zoo is that is read: a folder, file://, http(s)://, or a folder on the Hub. Throws UsageError.
[[nodiscard]] StoreLocation zoo_location(const std::string& zoo);

/// What the hub knows of a revision, below the endpoint; and the commit in its answer. Throws DataError.
[[nodiscard]] std::string hub_commit_path(const HubAddress& address);
[[nodiscard]] std::string commit_in(const Json& answer, const std::string& where);

/// The files directly in the folder, paths being their names. One small request for every thousand of them. Throws
/// TransportError, DataError.
[[nodiscard]] std::vector<FileDigest> list_hub_folder(Transport& hub, const HubAddress& address,
                                                      const TransferOptions& options, Status& status);

/// Makes a set in `set` of the rotation files in `files_folder`, which were fetched from `source`: .pt files of both
/// sides stay as they are, other shapes are converted. Throws DataError.
void make_set_of_files(const std::filesystem::path& files_folder, const std::filesystem::path& set,
                       const std::string& source);

/// Those that may hold rotations. Throws DataError if there are none.
[[nodiscard]] std::vector<FileDigest> rotation_files(std::vector<FileDigest> files, const HubAddress& address);

}  // namespace oscar
