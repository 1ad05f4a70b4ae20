// SPDX-License-Identifier: MIT
#include "base/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.hpp"
#include "base/place_folder.hpp"
#include "base/status.hpp"

namespace oscar {
namespace {

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const noexcept { return value_; }
  [[nodiscard]] int release() noexcept { return std::exchange(value_, -1); }

 private:
  int value_;
};

[[noreturn]] void throw_io(const std::string& what, const fs::path& path, int error) {
  const char* remedy = "";
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    remedy = "free some disk space or choose another place, then run again";
  if (error == EACCES || error == EPERM || error == EROFS) remedy = "check the permissions, or choose another place";
  if (error == ENOTDIR) remedy = "a part of this path is a file: choose another place";
  throw IoError(what + ": " + std::strerror(error), path.string(), remedy);
}

Descriptor open_for_reading(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 && errno == ENOENT) throw DataError("no such file", path.string(), "check the path");
  if (descriptor < 0) throw_io("cannot open for reading", path, errno);
  struct stat info {};
  if (::fstat(descriptor, &info) == 0 && S_ISDIR(info.st_mode)) {
    ::close(descriptor);
    throw DataError("is a folder, not a file", path.string(), "name a file");
  }
  return Descriptor(descriptor);
}

void sync_path(const fs::path& path, int flags) {
  const Descriptor file(::open(path.c_str(), flags | O_CLOEXEC));
  if (file.get() < 0 || ::fsync(file.get()) != 0) throw_io("cannot write to disk", path, errno);
}

/// Lets the disk begin with all files of a folder: then waiting for one after the other costs less.
void begin_to_sync(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const Descriptor file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    (void)::sync_file_range(file.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  }
}

fs::path sibling(const fs::path& target, const char* role) {
  return target.parent_path() / ("." + target.filename().string() + "." + role + "." + std::to_string(::getpid()));
}

void create_parent(const fs::path& target) {
  if (target.parent_path().empty()) return;
  std::error_code error;
  fs::create_directories(target.parent_path(), error);
  if (error) throw_io("cannot create folder", target.parent_path(), error.value());
}

/// Who finishes removes the lock file while holding it, so a lock can be won on a file that is no longer there: then
/// somebody else may hold one on a new file of that name, and only a lock on the file that the name stands for counts.
Descriptor lock_and_own(const fs::path& path, const fs::path& target) {
  for (;;) {
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (file.get() < 0) throw_io("cannot create a file beside the output", path, errno);
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      throw UsageError("another process is writing to this output folder", target.string(),
                       "wait for it, or choose another --out");
    }
    struct stat held {
    }, named{};
    const bool same = ::fstat(file.get(), &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
                      held.st_dev == named.st_dev && held.st_ino == named.st_ino;
    if (same) return Descriptor(file.release());
  }
}

fs::path lock_path_of(const fs::path& target) {
  return target.parent_path() / ("." + target.filename().string() + ".lock");
}

/// Puts `fresh` in the place of the folder `target`; afterwards `fresh` is the old one. Readers see the old folder or
/// the new one, never none, unless the file system cannot exchange names.
void exchange(const fs::path& fresh, const fs::path& target) {
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return;
  const fs::path aside = sibling(target, "old");
  if (::rename(target.c_str(), aside.c_str()) != 0) throw_io("cannot replace", target, errno);
  if (::rename(fresh.c_str(), target.c_str()) != 0) {
    const int error = errno;
    (void)::rename(aside.c_str(), target.c_str());
    throw_io("cannot rename into place", target, error);
  }
  (void)::rename(aside.c_str(), fresh.c_str());
}

/// "out/" and "out" name the same target.
fs::path without_trailing_slash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

}  // namespace

std::string read_text(const fs::path& path) {
  const Descriptor file = open_for_reading(path);
  std::string content;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = ::read(file.get(), buffer, sizeof buffer);
    if (count < 0) throw_io("cannot read", path, errno);
    if (count == 0) return content;
    content.append(buffer, static_cast<std::size_t>(count));
  }
}

std::uint64_t regular_file_size(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) throw DataError("no such file", path.string(), "check the path");
  return size;
}

void write_file(const fs::path& path, std::string_view content) {
  AtomicFile out(path);
  write_unsynced(out.temporary_path(), content);
  out.commit();
}

void write_unsynced(const fs::path& path, std::string_view content) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() < 0) throw_io("cannot create", path, errno);
  while (!content.empty()) {
    const ssize_t count = ::write(file.get(), content.data(), content.size());
    if (count < 0) throw_io("cannot write", path, errno);
    content.remove_prefix(static_cast<std::size_t>(count));
  }
}

AtomicFile::AtomicFile(fs::path target) : target_(std::move(target)), temporary_(sibling(target_, "part")) {
  create_parent(target_);
}

AtomicFile::~AtomicFile() {
  std::error_code ignored;
  if (!committed_) fs::remove(temporary_, ignored);
}

void AtomicFile::commit() {
  sync_path(temporary_, O_RDONLY);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) throw_io("cannot rename into place", target_, errno);
  committed_ = true;
  sync_path(target_.parent_path().empty() ? "." : target_.parent_path(), O_RDONLY | O_DIRECTORY);
}

AtomicFolder::AtomicFolder(fs::path target, bool replace)
    : target_(without_trailing_slash(target)), staging_(sibling(target_, "part")), replace_(replace) {
  create_parent(target_);
  const fs::path lock_path = lock_path_of(target_);
  Descriptor lock = lock_and_own(lock_path, target_);
  std::error_code error;
  if (!replace_ && fs::exists(target_) && !(fs::is_directory(target_) && fs::is_empty(target_, error))) {
    ::unlink(lock_path.c_str());
    throw UsageError("the output exists already", target_.string(),
                     "choose another --out, or pass --force to replace it");
  }
  fs::remove_all(staging_, error);
  if (!fs::create_directories(staging_, error)) {
    ::unlink(lock_path.c_str());
    throw_io("cannot create folder", staging_, error.value());
  }
  lock_ = lock.release();
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
  fs::remove(lock_path_of(target_), ignored);
  ::close(lock_);
}

void AtomicFolder::commit() { place_folder(staging_, target_); }

void place_folder(const fs::path& fresh, const fs::path& target) {
  begin_to_sync(fresh);
  for (const auto& entry : fs::recursive_directory_iterator(fresh)) {
    sync_path(entry.path(), entry.is_directory() ? O_RDONLY | O_DIRECTORY : O_RDONLY);
  }
  create_parent(target);
  if (fs::exists(target)) {
    exchange(fresh, target);
    std::error_code ignored;
    fs::remove_all(fresh, ignored);
  } else if (::rename(fresh.c_str(), target.c_str()) != 0) {
    throw_io("cannot rename into place", target, errno);
  }
  sync_path(target.parent_path().empty() ? "." : target.parent_path(), O_RDONLY | O_DIRECTORY);
}

FileLock::FileLock(const fs::path& path, bool wait) {
  create_parent(path);
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw_io("cannot open the lock file", path, errno);
  if (::flock(descriptor_, wait ? LOCK_EX : LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    ::close(descriptor_);
    throw_if_interrupted();  // Ctrl-C ends the wait
    throw_io("another process holds the lock", path, error);
  }
}

FileLock::~FileLock() { ::close(descriptor_); }

MappedFile::MappedFile(const fs::path& path) {
  Descriptor file = open_for_reading(path);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) throw_io("cannot stat", path, errno);
  size_ = static_cast<std::size_t>(info.st_size);
  if (size_ > 0) {
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (address == MAP_FAILED) throw_io("cannot map", path, errno);
    data_ = static_cast<const std::byte*>(address);
  }
  descriptor_ = file.release();
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

void read_at(const fs::path& path, std::uint64_t offset, std::span<std::byte> out) {
  read_at(open_for_reading(path).get(), offset, out);
}

void read_at(int descriptor, std::uint64_t offset, std::span<std::byte> out) {
  const auto path = [&] {
    std::error_code ignored;
    return fs::read_symlink("/proc/self/fd/" + std::to_string(descriptor), ignored);
  };
  while (!out.empty()) {
    const ssize_t count = ::pread(descriptor, out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_io("cannot read", path(), errno);
    if (count == 0) {
      throw DataError("the file ends before its data does", path().string(), "write or fetch it again");
    }
    out = out.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

std::vector<fs::path> list_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(fs::relative(entry.path(), folder));
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool is_safe_relative_path(std::string_view path) {
  if (path.empty() || path.front() == '/' || path.find('\\') != std::string_view::npos ||
      path.find('\0') != std::string_view::npos) {
    return false;
  }
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace oscar
