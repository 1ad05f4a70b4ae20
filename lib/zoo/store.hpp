// SPDX-License-Identifier: MIT
// A zoo that is written over the network: files go up first, the index last, and only if nobody else has changed it in
// the meantime. Three kinds: HTTP PUT (WebDAV), S3 (the same with signed requests), commits on the Hugging Face Hub.
#pragma once

#include <memory>
#include <string>

#include "base/status.hpp"
#include "remote/transport.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {

/// A document, and what it can be replaced by condition of: an ETag or a commit. Empty version: it does not exist.
struct StoredDocument {
  std::string text, version;
};

class ZooStore {
 public:
  virtual ~ZooStore() = default;
  [[nodiscard]] virtual StoredDocument read(const std::string& path) = 0;
  /// Uploads a file whose hash and size are known; it may become visible only with replace().
  virtual void put(const std::string& path, const std::filesystem::path& file, const FileDigest& digest) = 0;
  /// Writes a document if it still is what read() gave. False: somebody else was faster.
  [[nodiscard]] virtual bool replace(const std::string& path, const std::string& text, const std::string& version) = 0;
  /// Whether replace() refuses what somebody else has changed: some servers do not look at conditions. Tries it on the
  /// document at `path`, which has this text and keeps it.
  [[nodiscard]] virtual bool checks_versions(const std::string& path, const std::string& text) = 0;
  /// Keeps other publishers out until the result is gone, for servers that do not look at conditions. Null: this store
  /// has no locks. Throws TransportError if another process holds the lock for too long.
  [[nodiscard]] virtual std::shared_ptr<void> lock(const std::string&) { return nullptr; }
  /// Returns the name of a resource for messages.
  [[nodiscard]] virtual std::string where(const std::string& path) const = 0;
};

[[nodiscard]] std::unique_ptr<ZooStore> make_http_store(const StoreLocation& location, const TransferOptions& options,
                                                        Status& status);
/// zoo: hf://ORG/REPO[/FOLDER][@BRANCH]
[[nodiscard]] std::unique_ptr<ZooStore> make_hub_store(const std::string& zoo, const TransferOptions& options,
                                                       Status& status);

}  // namespace oscar
