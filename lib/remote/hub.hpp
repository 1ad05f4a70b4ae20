// SPDX-License-Identifier: MIT
// The Hugging Face Hub: what hf://ORG/REPO[/FOLDER][@REVISION], or hf://datasets/ORG/REPO…, means in requests to it,
// and a repository as a server of files. The hub is asked once which commit a branch or tag is; all files are of that
// commit, whatever is pushed meanwhile. HF_ENDPOINT names another hub. The token in HF_TOKEN, or the one that
// `hf auth login` keeps in a file, is sent to the hub and to nobody else. Non-goal: the xet protocol.
#pragma once

#include <optional>
#include <string>

#include "base/json.hpp"
#include "remote/server.hpp"

namespace oscar {

struct HubAddress {
  std::string repository;         // "ORG/REPO", or "datasets/ORG/REPO"
  std::string folder;             // in the repository, or a file there; may be empty
  std::string revision = "main";  // branch, tag or commit

  /// Returns the address as a user would write it.
  [[nodiscard]] std::string text() const;
  /// Returns the address with the revision before the folder, so that "/" appends names:
  /// "hf://ORG/REPO@REVISION/FOLDER".
  [[nodiscard]] std::string place() const;
};

[[nodiscard]] bool is_hub_address(const std::string& text);
/// Throws UsageError.
[[nodiscard]] HubAddress parse_hub_address(const std::string& text,
                                           const AskedFor& asked = {
                                               "NAME", "write hf://ORG/REPO/FOLDER or hf://ORG/REPO/FOLDER@REVISION"});
/// The address that HubAddress::place() gave, with whatever names were appended.
[[nodiscard]] HubAddress hub_address_of_place(const std::string& place);

/// 40 hexadecimal digits: what git calls a commit, or a file's content.
[[nodiscard]] bool is_git_hash(const std::string& text);

/// The hub itself: HF_ENDPOINT or https://huggingface.co, with the token (over TLS, or to this machine).
[[nodiscard]] StoreLocation hub_endpoint();
/// The files of a repository, below the endpoint: "ORG/REPO/resolve/<revision>".
[[nodiscard]] std::string hub_files(const HubAddress& address);
/// Returns the path, below the endpoint, of what the hub answers about a repository.
[[nodiscard]] std::string hub_api(const HubAddress& address);

/// A repository at the commit that its revision is now.
struct HubRepository {
  HubAddress pinned;          // its revision is a commit
  std::optional<Json> files;  // [{"rfilename", "size", "blobId", "lfs"}]; nothing: the hub does not tell
  [[nodiscard]] bool has(const std::string& path) const;
};
/// Asks the hub. Throws DataError: no such repository, no such revision, or nobody may read it; TransportError,
/// Interrupted.
[[nodiscard]] HubRepository ask_hub(const HubAddress& address, const TransferOptions& options, Status& status);

/// A repository as a server of its files.
class HubServer : public Server {
 public:
  HubServer(HubRepository repository, const TransferOptions& options, Status& status);

  [[nodiscard]] const std::string& commit() const noexcept { return repository_.pinned.revision; }

 protected:
  [[nodiscard]] DataError missing(const std::string& where) const override;
  void explain_denied(const Denied& error) const override;

 private:
  const HubRepository repository_;
};

}  // namespace oscar
