// SPDX-License-Identifier: MIT
// What hf://ORG/REPO[/FOLDER][@REVISION], or hf://datasets/ORG/REPO…, means in requests to the Hugging Face Hub.
// HF_ENDPOINT names another hub. The token in HF_TOKEN, or the one that `hf auth login` keeps in a file, is sent to the
// hub and to nobody else.
#pragma once

#include <string>

#include "base/json.hpp"
#include "remote/location.hpp"

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

/// Returns a revision as one part of an address: '/' and what else addresses do not have become percent codes.
[[nodiscard]] std::string as_one_name(const std::string& revision);

/// 40 hexadecimal digits: what git calls a commit, or a file's content.
[[nodiscard]] bool is_git_hash(const std::string& text);

/// The hub itself: HF_ENDPOINT or https://huggingface.co, with the token (over TLS, or to this machine).
[[nodiscard]] StoreLocation hub_endpoint();
/// The files of a repository, below the endpoint: "ORG/REPO/resolve/<revision>".
[[nodiscard]] std::string hub_files(const HubAddress& address);
/// Returns the path, below the endpoint, of what the hub answers about a repository.
[[nodiscard]] std::string hub_api(const HubAddress& address);
/// Returns the path, below the endpoint, of what the hub knows of a revision; and the commit in its answer. Throws
/// DataError.
[[nodiscard]] std::string hub_commit_path(const HubAddress& address);
[[nodiscard]] std::string commit_in(const Json& answer, const std::string& where);

}  // namespace oscar
