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

constexpr std::uint64_t kBlockBytes = std::uint64_t{64} << 10;  // of small reads, which cost a request each
constexpr std::size_t kMaxBlocks = 64;
constexpr int kReaders = 8;

std::uint64_t whole_pages(std::uint64_t bytes) {
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

RemoteFile::~RemoteFile() {
  if (addresses_ != nullptr) ::munmap(addresses_, whole_pages(size_));
}

/// Gives the file addresses, as many as it has bytes: if nobody knows how many those are, the first block tells.
void RemoteFile::make_known() const {
  const std::lock_guard lock(mutex_);
  if (addresses_ != nullptr) return;
  if (!object_.size()) {
    Block first(kBlockBytes);
    std::uint64_t count = 0;
    read({&object_, 0, first, &count});
    first.resize(count);
    blocks_[0] = std::make_shared<const Block>(std::move(first));
  }
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
  make_known();
  return {addresses_, size_};
}

/// Whole pages, so that no page is there in part: what lies behind must not read as zeros.
void RemoteFile::load_front(std::uint64_t count) {
  make_known();
  const std::uint64_t pages = whole_pages(std::min(count, size_)), wanted = std::min(pages, size_);
  if (wanted <= loaded_) return;
  Block fresh(wanted - loaded_);
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
  if (to.size() < kBlockBytes) return read_by_blocks(offset, to);
  read(request(offset, to));
}

void RemoteFile::read(const RangeRequest& request) const { server_.read({&request, 1}); }

void RemoteFile::read_by_blocks(std::uint64_t offset, std::span<std::byte> to) const {
  make_known();
  if (offset > size_ || to.size() > size_ - offset) {
    throw DataError("the file ends before its data does", server_.where(object_.path()), "write or upload it again");
  }
  while (!to.empty()) {
    const std::shared_ptr<const Block> own = block(offset / kBlockBytes);
    const std::uint64_t begin = offset % kBlockBytes, count = std::min<std::uint64_t>(to.size(), own->size() - begin);
    std::memcpy(to.data(), own->data() + begin, count);
    to = to.subspan(count);
    offset += count;
  }
}

std::shared_ptr<const RemoteFile::Block> RemoteFile::block(std::uint64_t number) const {
  std::unique_lock lock(mutex_);
  if (const auto found = blocks_.find(number); found != blocks_.end()) return found->second;
  lock.unlock();  // rather twice the same block than one after the other
  const std::uint64_t begin = number * kBlockBytes;
  Block fresh(std::min(kBlockBytes, size_ - begin));
  read(request(begin, fresh));
  lock.lock();
  if (blocks_.size() >= kMaxBlocks)
    blocks_.erase(std::next(blocks_.begin()));  // the first has what archives begin with
  return blocks_[number] = std::make_shared<const Block>(std::move(fresh));
}

/// A byte is enough to learn it: of many files nobody wants more.
std::string RemoteFile::version() const {
  if (!object_.size()) {
    Block first(1);
    read(request(0, first));
  }
  return object_.version();
}

int RemoteFile::readers() const { return kReaders; }

}  // namespace oscar
