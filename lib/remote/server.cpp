// SPDX-License-Identifier: MIT
#include "remote/server.hpp"

#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "remote/curl_handle.hpp"
#include "remote/retries.hpp"

namespace oscar {

Server::Server(StoreLocation location, const TransferOptions& options, Status& status)
    : location_(std::move(location)), options_(options), status_(status) {
  OSCAR_CHECK(location_.remote);
}

template <class F>
auto Server::with_transport(F&& f) {
  std::unique_ptr<Transport> own;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      own = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (own == nullptr) own = make_curl_transport(location_, options_);
  // One that failed is not used again: what its connections carry is not known.
  const auto keep = [&] {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(own));
  };
  if constexpr (std::is_void_v<decltype(f(*own))>) {
    f(*own);
    keep();
  } else {
    auto result = f(*own);
    keep();
    return result;
  }
}

std::string Server::text(const std::string& path, std::uint64_t most) {
  RemoteObject& file = object(path);
  return with_transport([&](Transport& transport) {
    std::string text;
    with_retries(options_, status_, [&] {
      text.clear();
      PieceRequest request{path, 0, std::nullopt, most};
      request.begin = [&](const PieceAnswer& answer) { file.learn(answer, where(path)); };
      request.if_match = file.condition();
      request.sink = [&](std::span<const std::byte> bytes, bool) {
        if (bytes.size() > most - text.size()) {
          throw TransportError("the file has more than " + plural(static_cast<std::int64_t>(most), "byte"), where(path),
                               "check that this is the right address");
        }
        text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      };
      transport.get_one(std::move(request));
    });
    return text;
  });
}

RemoteObject& Server::object(const std::string& path) {
  const std::lock_guard lock(mutex_);
  return objects_.try_emplace(path, path).first->second;
}

void Server::read(std::span<const RangeRequest> requests) {
  try {
    with_transport([&](Transport& transport) { read_ranges(transport, requests, options_, status_); });
  } catch (const NotFound& error) {
    explain_missing(error.where());
  } catch (const Denied& error) {
    explain_denied(error);
    throw;
  }
}

DataError Server::missing(const std::string& where) {
  return DataError("there is no such file", where, "check the address");
}

std::string Server::where(const std::string& path) const { return location_.url + "/" + percent_encoded(path); }

}  // namespace oscar
