// SPDX-License-Identifier: MIT
// A zoo in a repository of the Hugging Face Hub, as publish writes it. Large files go to its storage by the Git LFS
// batch API; then one commit, which names its parent, brings all files and the index: a set and its entry appear
// together or not at all. Methods throw TransportError, DataError, IoError, Interrupted.
#pragma once

#include <string>
#include <vector>

#include "base/json.hpp"
#include "base/status.hpp"
#include "remote/curl_call.hpp"
#include "remote/hub.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {

/// A document at a commit; an empty text: it does not exist there.
struct StoredDocument {
  std::string text, commit;
};

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
  /// Commits everything that was put, and this document, on top of `parent`. False: another commit was faster.
  [[nodiscard]] bool commit(const std::string& path, const std::string& text, const std::string& parent);
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
