// SPDX-License-Identifier: MIT
// A repository on the Hugging Face Hub as a server of files. The hub is asked once which commit a branch or tag is; all
// files are of that commit, whatever is pushed meanwhile.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "remote/hub.hpp"
#include "remote/server.hpp"

namespace oscar {

class HubServer : public Server {
 public:
  /// pinned: its revision is a commit. files: paths of all files at it; nothing: the hub does not tell.
  HubServer(const StoreLocation& hub, const HubAddress& pinned, std::optional<std::vector<std::string>> files,
            const TransferOptions& options, Status& status);

  [[nodiscard]] const std::string& commit() const noexcept { return pinned_.revision; }
  void explain_denied(const Denied& error) const override;

 protected:
  [[nodiscard]] DataError missing(const std::string& where) override;

 private:
  const HubAddress pinned_;
  const std::optional<std::vector<std::string>> files_;
  const bool has_token_;
};

/// The repository at the commit that its revision is now. Throws DataError: no such repository, no such revision, or
/// nobody may read it; TransportError, Interrupted.
[[nodiscard]] std::unique_ptr<HubServer> open_repository(const HubAddress& address, const TransferOptions& options,
                                                         Status& status);

}  // namespace oscar
