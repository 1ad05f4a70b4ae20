// SPDX-License-Identifier: MIT
#include "remote/remote_file.hpp"

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
