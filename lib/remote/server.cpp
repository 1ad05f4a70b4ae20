// SPDX-License-Identifier: MIT
#include "remote/server.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/errors.hpp"

namespace oscar {
namespace {

constexpr int kReaders = 8;

std::uint64_t whole_pages(std::uint64_t bytes) {
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

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

RemoteFile::~RemoteFile() {
  if (addresses_ != nullptr) ::munmap(addresses_, whole_pages(size_));
}

/// A byte is enough to know size and version: of many files nobody wants more.
void RemoteFile::learn() const {
  if (object_.size()) return;
  std::byte first{};
  read(0, {&first, 1});
}

/// As many as the file has bytes.
void RemoteFile::reserve_addresses() const {
  const std::lock_guard lock(mutex_);
  if (addresses_ != nullptr) return;
  learn();
  size_ = object_.size().value();
  void* place = ::mmap(nullptr, whole_pages(std::max<std::uint64_t>(size_, 1)), PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) {
    throw IoError(std::string("cannot reserve addresses: ") + std::strerror(errno), server_.where(object_.path()),
                  "raise the limit of the address space (ulimit -v)");
  }
  addresses_ = static_cast<std::byte*>(place);
}

std::span<const std::byte> RemoteFile::bytes() const {
  reserve_addresses();
  return {addresses_, size_};
}

/// Whole pages, so that no page is there in part: what lies behind must not read as zeros.
void RemoteFile::load_front(std::uint64_t count) {
  reserve_addresses();
  const std::uint64_t pages = whole_pages(std::min(count, size_)), wanted = std::min(pages, size_);
  if (wanted <= loaded_) return;
  std::vector<std::byte> fresh(wanted - loaded_);
  read(loaded_, fresh);
  std::byte* const to = addresses_ + loaded_;  // a page's begin: all but the last load end with a page
  if (::mprotect(to, whole_pages(fresh.size()), PROT_READ | PROT_WRITE) != 0) {
    throw IoError(std::string("cannot get memory: ") + std::strerror(errno), server_.where(object_.path()), "");
  }
  std::memcpy(to, fresh.data(), fresh.size());
  (void)::mprotect(to, whole_pages(fresh.size()), PROT_READ);
  loaded_ = wanted;
}

void RemoteFile::read(std::uint64_t offset, std::span<std::byte> to) const {
  if (to.empty()) return;
  const RangeRequest range = request(offset, to);
  server_.read({&range, 1});
}

std::string RemoteFile::version() const {
  learn();
  return object_.version();
}

int RemoteFile::readers() const { return kReaders; }

}  // namespace oscar
