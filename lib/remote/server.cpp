// SPDX-License-Identifier: MIT
#include "remote/server.hpp"

#include "base/check.hpp"
#include "base/errors.hpp"

namespace oscar {

Server::Server(StoreLocation location, const TransferOptions& options, Status& status)
    : location_(std::move(location)), options_(options), status_(status) {
  OSCAR_CHECK(location_.remote);
}

template <class F>
void Server::with_transport(F&& f) {
  std::unique_ptr<Transport> own;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      own = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (own == nullptr) own = make_curl_transport(location_, options_);
  f(*own);  // one that failed is not used again: what its connections carry is not known
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(own));
}

std::optional<std::string> Server::fetch(const std::string& path, std::uint64_t most, bool required) {
  std::string text;
  try {
    with_transport([&](Transport& transport) {
      text = fetch_text(transport, path, {0, most}, options_, status_, &object(path));
    });
    return text;
  } catch (const NotFound&) {
    if (required) throw missing(where(path));
  } catch (const Denied& error) {
    explain_denied(error);
    if (required) throw;
  }
  return std::nullopt;
}

std::string Server::text(const std::string& path, std::uint64_t most) { return fetch(path, most, true).value(); }

std::optional<std::string> Server::optional_text(const std::string& path, std::uint64_t most) {
  return fetch(path, most, false);
}

RemoteObject& Server::object(const std::string& path) {
  const std::lock_guard lock(mutex_);
  return objects_.try_emplace(path, path).first->second;
}

void Server::read(std::span<const RangeRequest> requests) {
  try {
    with_transport([&](Transport& transport) { read_ranges(transport, requests, options_, status_); });
  } catch (const NotFound& error) {
    throw missing(error.where());
  } catch (const Denied& error) {
    explain_denied(error);
    throw;
  }
}

DataError Server::missing(const std::string& where) const {
  return DataError("there is no such file", where, "check the address");
}

std::string Server::where(const std::string& path) const { return location_.url + "/" + percent_encoded(path); }

}  // namespace oscar
