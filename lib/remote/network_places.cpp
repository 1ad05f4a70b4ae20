// SPDX-License-Identifier: MIT
#include "remote/network_places.hpp"

#include <utility>

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

/// "https://me:pw@host/a/b" -> {"https://", "me:pw@", "host", "a/b"}
struct Address {
  std::string scheme, user, host, path;
  explicit Address(const std::string& text) {
    const auto mark = text.find("://") + 3;
    const auto slash = std::min(text.find('/', mark), text.size());
    const auto at = text.substr(0, slash).rfind('@');
    const auto begin = at == std::string::npos || at < mark ? mark : at + 1;
    scheme = text.substr(0, mark);
    user = text.substr(mark, begin - mark);
    host = text.substr(begin, slash - begin);
    path = text.substr(std::min(slash + 1, text.size()));
  }
  [[nodiscard]] std::string origin() const { return scheme + host; }
};

}  // namespace

NetworkPlaces::NetworkPlaces(const TransferOptions& options) : options_(options) {}
NetworkPlaces::~NetworkPlaces() = default;

void NetworkPlaces::talk_to(Status& status) { status_ = &status; }

fs::path NetworkPlaces::settle(const std::string& place) {
  if (is_hub_address(place)) return parse_hub_address(place, kAskedHub).place();
  Address address(place);
  while (address.path.ends_with('/')) address.path.pop_back();
  if (address.host.empty()) throw UsageError("the address names no host", place, kAsked.remedy);
  const StoreLocation location = parse_location(address.scheme + address.user + address.host, kAsked);
  if (address.path.find_first_of("?#") != std::string::npos) {
    throw UsageError("an address of a folder has no query", address.origin() + "/…", kAsked.remedy);
  }
  if (!address.user.empty()) {
    const std::lock_guard lock(mutex_);
    credentials_[address.origin()] = location.credentials;
  }
  return address.origin() + (address.path.empty() ? "" : "/" + address.path);
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
  std::unique_ptr<Server>& server = servers_[address.origin()];
  if (server == nullptr) {
    StoreLocation location = parse_location(address.origin(), kAsked);
    if (const auto known = credentials_.find(address.origin()); known != credentials_.end()) {
      location.credentials = known->second;
    }
    server = std::make_unique<Server>(location, options_, *status_);
  }
  std::string path = percent_decoded(address.path, kAsked);
  if (("/" + path + "/").find("/../") != std::string::npos) {  // as a name in an index could say
    throw UsageError("the address leads out of its folder", address.origin(), kAsked.remedy);
  }
  return {server.get(), std::move(path)};
}

HubServer& NetworkPlaces::find_repository(const HubAddress& address) {
  HubAddress whole = address;
  whole.folder.clear();
  const std::lock_guard lock(mutex_);  // others that ask for a file there need the commit, too
  std::unique_ptr<HubServer>& server = repositories_[whole.text()];
  if (server == nullptr) server = open_repository(whole, options_, *status_);
  return *server;
}

std::optional<Publication> NetworkPlaces::publication(const fs::path& folder) {
  if (!is_hub_address(folder.string())) return std::nullopt;
  const HubAddress address = hub_address_of_place(folder.string());
  if (!address.folder.empty()) return std::nullopt;
  return Publication{address.repository, find_repository(address).commit()};
}

std::string NetworkPlaces::existing_text(const fs::path& file) {
  {
    const std::lock_guard lock(mutex_);
    if (kept_.first == file) return std::exchange(kept_, {}).second;
  }
  const auto [server, path] = find(file);
  return server->text(path, kMaxTextBytes);
}

bool NetworkPlaces::exists(const fs::path& file) {
  std::optional<std::string> text = optional_text(file);
  if (!text) return false;
  const std::lock_guard lock(mutex_);
  kept_ = {file, std::move(*text)};
  return true;
}

std::string NetworkPlaces::text(const fs::path& file) {
  const auto [server, path] = find(file);
  try {
    return existing_text(file);
  } catch (const NotFound&) {
    server->explain_missing(server->where(path));
  } catch (const Denied& error) {
    server->explain_denied(error);
    throw;
  }
}

std::optional<std::string> NetworkPlaces::optional_text(const fs::path& file) {
  try {
    return existing_text(file);
  } catch (const NotFound&) {
    return std::nullopt;
  } catch (const Denied& error) {
    find(file).first->explain_denied(error);
    return std::nullopt;
  }
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
