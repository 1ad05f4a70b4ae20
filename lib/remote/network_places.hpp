// SPDX-License-Identifier: MIT
// Addresses as places: hf://ORG/REPO[@REVISION] and http(s)://HOST/PATH. Servers and
// their connections are kept for the process's life, and so is the commit that a revision was when it was first asked
// for.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/places.hpp"
#include "base/status.hpp"
#include "remote/hub.hpp"
#include "remote/server.hpp"

namespace oscar {

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
