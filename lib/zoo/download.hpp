// SPDX-License-Identifier: MIT
// Files of known size and hash onto disk, out of a transport that may fail. Whatever does not match is refused, and no
// more is written than was announced.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "remote/fetch.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {

struct FetchOptions {
  TransferOptions transfer;
  /// Keep what an earlier attempt left in the folder, and ask for the rest only.
  bool resume = false;
};

/// Writes these files into `folder` (a folder under construction), each checked. prefix: their place in the zoo, "" if
/// the transport's root is it. Throws TransportError, IoError, Interrupted.
void fetch_files(Transport& transport, const std::string& prefix, std::vector<FileDigest> files,
                 const std::filesystem::path& folder, const FetchOptions& options, Status& status);

/// The set's files and its manifest.json into `folder`.
void fetch_set(Transport& transport, const std::string& prefix, const SetManifest& manifest,
               const std::filesystem::path& folder, const FetchOptions& options, Status& status);

}  // namespace oscar
