// SPDX-License-Identifier: MIT
// Sets that were pulled before. sets/<manifest sha256>/ holds a set, named by its content; names/ remembers which
// content a zoo gave for a name, so that the same pull again needs no network; locks/ lets two pulls at once fetch
// once; partial/ holds what an interrupted pull had fetched; signatures/ and keys/ serve set_manifest.hpp. And the
// locks between processes, which zoos in folders have, too. Non-goal: eviction; the folder can be deleted at any time.
//
// Files of known size and hash onto disk, out of a transport that may fail. Whatever does not match is refused, and no
// more is written than was announced.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "base/status.hpp"
#include "remote/fetch.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {

/// Returns an exclusive lock on `path` (created if missing), which closing it, or the end of the process, releases.
/// wait = false: throws IoError at once if another process holds it.
[[nodiscard]] Descriptor lock_file(const std::filesystem::path& path, bool wait);

/// OSCAR_CACHE, else $XDG_CACHE_HOME/oscar, else ~/.cache/oscar. Throws UsageError if none is set.
[[nodiscard]] std::filesystem::path default_cache_folder();

class SetCache {
 public:
  explicit SetCache(std::filesystem::path root);

  [[nodiscard]] std::filesystem::path set_folder(const std::string& manifest_sha256) const;
  /// Returns the folder where a set is put together; what is left there when a pull ends early is where the next one
  /// goes on.
  [[nodiscard]] std::filesystem::path partial_folder(const std::string& manifest_sha256) const;
  [[nodiscard]] std::filesystem::path lock_of(const std::string& manifest_sha256) const;

  /// Returns the file that keeps the signatures of a manifest.
  [[nodiscard]] std::filesystem::path signature_file(const std::string& manifest_sha256) const;
  /// Returns the file that remembers the keys which signed the sets of `source`.
  [[nodiscard]] std::filesystem::path key_file(const std::string& source) const;

  /// Hash of the manifest that `name` stood for when it was last pulled from `zoo`.
  [[nodiscard]] std::optional<std::string> recall(const std::string& zoo, const std::string& name) const;
  void remember(const std::string& zoo, const std::string& name, const std::string& manifest_sha256) const;

 private:
  [[nodiscard]] std::filesystem::path record_file(const std::string& zoo, const std::string& name) const;
  std::filesystem::path root_;
};

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
