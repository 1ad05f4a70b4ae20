// SPDX-License-Identifier: MIT
// The Hugging Face Hub: what hf://ORG/REPO[/FOLDER][@REVISION], or hf://datasets/ORG/REPO…, means in requests to it,
// and a repository as a server of files. The hub is asked once which commit a branch or tag is; all files are of that
// commit, whatever is pushed meanwhile (those of a zoo are of the branch, and its index knows them). HF_ENDPOINT names
// another hub. The token in HF_TOKEN, or the one that `hf auth login` keeps in a file, is sent to the hub and to nobody
// else. Non-goal: the xet protocol.
//
// Addresses as places: hf://ORG/REPO[@REVISION] and http(s)://HOST/PATH. Servers and
// their connections are kept for the process's life, and so is the commit that a revision was when it was first asked
// for.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/json.hpp"
#include "base/places.hpp"
#include "base/status.hpp"
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
/// 40 hexadecimal digits: what git calls a commit, or a file's content.
[[nodiscard]] bool is_git_hash(const std::string& text);

/// The hub itself: HF_ENDPOINT or https://huggingface.co, with the token (over TLS, or to this machine).
[[nodiscard]] StoreLocation hub_endpoint();
/// The files of a repository, below the endpoint, as in a URL: "ORG/REPO/resolve/<revision>".
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

class HubServer;

class NetworkPlaces : public RemotePlaces {
 public:
  explicit NetworkPlaces(const TransferOptions& options = {});
  ~NetworkPlaces() override;

  /// Says who hears what servers have to say from now on; `status` must outlive this. Called before the first request.
  void talk_to(Status& status);

  [[nodiscard]] std::filesystem::path settle(const std::string& place) override;
  [[nodiscard]] std::string text(const std::filesystem::path& file) override;
  [[nodiscard]] std::optional<std::string> optional_text(const std::filesystem::path& file) override;
  [[nodiscard]] bool exists(const std::filesystem::path& file) override;
  [[nodiscard]] std::optional<Publication> publication(const std::filesystem::path& folder) override;
  [[nodiscard]] std::unique_ptr<PlacedFile> open(const std::filesystem::path& file) override;
  void read(std::span<const FilePart> parts) override;

 private:
  /// The server of an address, and the path there.
  [[nodiscard]] std::pair<Server*, std::string> find(const std::filesystem::path& place);
  /// Returns the repository of an address on the hub, which is asked for its commit when it is new.
  [[nodiscard]] HubServer& find_repository(const HubAddress& address);
  /// Returns the text that exists() has kept, if it is of this file.
  [[nodiscard]] std::optional<std::string> take_kept(const std::filesystem::path& file);

  TransferOptions options_;
  Status silent_;
  Status* status_ = &silent_;
  std::mutex mutex_;
  std::pair<std::filesystem::path, std::string> kept_;              // a text that exists() has fetched
  std::map<std::string, std::unique_ptr<Server>> servers_;          // by "scheme://host"
  std::map<std::string, std::unique_ptr<HubServer>> repositories_;  // by "hf://ORG/REPO@REVISION"
};

}  // namespace oscar
