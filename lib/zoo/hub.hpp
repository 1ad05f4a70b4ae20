// SPDX-License-Identifier: MIT
// Repositories of the Hugging Face Hub (remote/hub.hpp). Rotation files of others: which of them are wanted, with the
// sha256 (large files) or git's hash (small ones) that the hub tells of each, and the set that is made of them. And a
// zoo in a repository, as publish writes it: large files go to its storage by the Git LFS batch API; then one commit,
// which names its parent, brings all files and the index, so that a set and its entry appear together or not at all.
#pragma once

#include <string>
#include <vector>

#include "base/json.hpp"
#include "base/status.hpp"
#include "remote/fetch.hpp"
#include "remote/hub.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {

/// Returns the files directly in the address's folder that may hold rotations, paths being their names; of several
/// pairs of .pt files those of `pair`. Throws DataError if there are none, UsageError if the pair is not there, or
/// several are and none is named.
[[nodiscard]] std::vector<FileDigest> rotation_files(const HubRepository& repository, const std::string& pair);

/// Makes a set in `set` of the rotation files in `files_folder`, which were fetched from `source`. Throws DataError.
void make_set_of_files(const std::filesystem::path& files_folder, const std::filesystem::path& set,
                       const std::string& source);

/// A document at a commit; an empty text: it does not exist there.
struct StoredDocument {
  std::string text;
  HubRepository repository;
};

/// Methods throw TransportError, DataError, IoError, Interrupted.
class HubStore {
 public:
  /// zoo: hf://ORG/REPO[/FOLDER][@BRANCH]. Throws UsageError, also where there is no token.
  HubStore(const std::string& zoo, const TransferOptions& options, Status& status);

  /// Reads a document as it is now.
  [[nodiscard]] StoredDocument read(const std::string& path);
  /// Adds a file whose hash and size are known to the next commit.
  void put(const std::string& path, const std::filesystem::path& file, const FileDigest& digest);
  /// The same for a text of at most kMaxDocumentBytes.
  void put_text(const std::string& path, const std::string& text);
  /// Returns the paths below a folder of its files, at the commit of `found`.
  [[nodiscard]] std::vector<std::string> files_in(const std::string& folder, const StoredDocument& found) const;
  /// Commits everything that was put, and this document, on top of the commit where it was `found`, and removes those
  /// of the files `before` that were not put. False: another commit was faster.
  [[nodiscard]] bool commit(const std::string& path, const std::string& text, const std::vector<std::string>& before,
                            const StoredDocument& found);
  /// Names a resource in messages.
  [[nodiscard]] std::string where(const std::string& path) const;

 private:
  [[nodiscard]] std::string in_repository(const std::string& path) const;
  [[nodiscard]] std::string api(const std::string& what) const;
  [[nodiscard]] Json text_operation(const std::string& path, const std::string& text) const;
  void upload(const std::filesystem::path& file, const FileDigest& digest);
  [[nodiscard]] Json post(const std::string& url, const std::string& body);
  [[nodiscard]] HttpAnswer call(const HttpCall& call) { return call_http(hub_, call, options_, status_); }

  HubAddress address_;
  StoreLocation hub_;
  TransferOptions options_;
  Status& status_;
  std::vector<Json> operations_;  // of the next commit
};

}  // namespace oscar
