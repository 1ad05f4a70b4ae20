// SPDX-License-Identifier: MIT
#include "remote/network_places.hpp"

#include "base/errors.hpp"
#include "base/files.hpp"
#include "remote/location.hpp"
#include "remote/remote_file.hpp"

namespace oscar {
namespace {

/// Of a document that is read whole: tokenizers and indexes of large models have tens of MB.
constexpr std::uint64_t kMaxTextBytes = std::uint64_t{1} << 30;

const AskedFor kAsked{"", "give hf://ORG/NAME, http://HOST/PATH or https://HOST/PATH"};
const AskedFor kAskedHub{"", "write hf://ORG/NAME or hf://ORG/NAME@REVISION"};

/// "https://host/a/b" -> {"https://host", "a/b"}
struct Address {
  std::string origin, path;
  explicit Address(const std::string& text) {
    const auto slash = std::min(text.find('/', text.find("://") + 3), text.size());
    origin = text.substr(0, slash);
    path = text.substr(std::min(slash + 1, text.size()));
  }
};

}  // namespace

NetworkPlaces::NetworkPlaces(const TransferOptions& options) : options_(options) {}
NetworkPlaces::~NetworkPlaces() = default;

void NetworkPlaces::talk_to(Status& status) { status_ = &status; }

fs::path NetworkPlaces::settle(const std::string& place) {
  if (is_hub_address(place)) return parse_hub_address(place, kAskedHub).place();
  return parse_location(place, kAsked).url;
}

std::pair<Server*, std::string> NetworkPlaces::find(const fs::path& place) {
  if (is_hub_address(place.string())) {
    const HubAddress address = hub_address_of_place(place.string());
    if (!address.folder.empty() && !is_safe_relative_path(address.folder)) {  // as a name in an index could say
      throw UsageError("the address leads out of its repository", address.repository, kAskedHub.remedy);
    }
    return {&find_repository(address), address.folder};
  }
  const Address address(place.string());
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Server>& server = servers_[address.origin];
  if (server == nullptr) {
    server = std::make_unique<Server>(parse_location(address.origin, kAsked), options_, *status_);
  }
  std::string path = percent_decoded(address.path, kAsked);
  if (("/" + path + "/").find("/../") != std::string::npos) {  // as a name in an index could say
    throw UsageError("the address leads out of its folder", address.origin, kAsked.remedy);
  }
  return {server.get(), std::move(path)};
}

HubServer& NetworkPlaces::find_repository(const HubAddress& address) {
  HubAddress whole = address;
  whole.folder.clear();
  const std::lock_guard lock(mutex_);  // others that ask for a file there need the commit, too
  std::unique_ptr<HubServer>& server = repositories_[whole.text()];
  if (server == nullptr) server = std::make_unique<HubServer>(ask_hub(whole, options_, *status_), options_, *status_);
  return *server;
}

std::optional<Publication> NetworkPlaces::publication(const fs::path& folder) {
  if (!is_hub_address(folder.string())) return std::nullopt;
  const HubAddress address = hub_address_of_place(folder.string());
  if (!address.folder.empty()) return std::nullopt;
  return Publication{address.repository, find_repository(address).commit()};
}

std::optional<std::string> NetworkPlaces::take_kept(const fs::path& file) {
  const std::lock_guard lock(mutex_);
  if (kept_.first != file) return std::nullopt;
  return std::exchange(kept_, {}).second;
}

bool NetworkPlaces::exists(const fs::path& file) {
  std::optional<std::string> text = optional_text(file);
  if (!text) return false;
  const std::lock_guard lock(mutex_);
  kept_ = {file, std::move(*text)};
  return true;
}

std::string NetworkPlaces::text(const fs::path& file) {
  if (std::optional<std::string> kept = take_kept(file)) return std::move(*kept);
  const auto [server, path] = find(file);
  return server->text(path, kMaxTextBytes);
}

std::optional<std::string> NetworkPlaces::optional_text(const fs::path& file) {
  if (std::optional<std::string> kept = take_kept(file)) return kept;
  const auto [server, path] = find(file);
  return server->optional_text(path, kMaxTextBytes);
}

std::unique_ptr<PlacedFile> NetworkPlaces::open(const fs::path& file) {
  const auto [server, path] = find(file);
  return std::make_unique<RemoteFile>(*server, path);
}

void NetworkPlaces::read(std::span<const FilePart> parts) {
  RemoteReads reads;
  for (const FilePart& part : parts) part.file->add_to(reads, part.offset, part.to);
  for (const auto& [server, requests] : reads.by_server) server->read(requests);
}

}  // namespace oscar
