// SPDX-License-Identifier: MIT
#include "base/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "base/errors.hpp"
#include "base/status.hpp"

namespace oscar {
namespace {

[[noreturn]] void refuse_kind(mode_t mode, const fs::path& path) {
  if (S_ISDIR(mode)) throw DataError("is a folder, not a file", path.string(), "name a file");
  const char* const kind = S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
  throw DataError(std::string("is ") + kind + ", not a file", path.string(),
                  "name a file; only --text and --tokens read pipes");
}

/// Regular files only. A pipe is refused at once: opening it must not wait for someone who writes to it.
Descriptor open_for_reading(const fs::path& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0 && errno == ENOENT) throw DataError("no such file", path.string(), "check the path");
  const int error = errno;
  struct stat info {};
  const bool known = file.get() >= 0 ? ::fstat(file.get(), &info) == 0 : ::stat(path.c_str(), &info) == 0;
  if (known && !S_ISREG(info.st_mode)) refuse_kind(info.st_mode, path);
  if (file.get() < 0) throw_io("cannot open for reading", path, error);
  return file;
}

using namespace std::chrono_literals;

constexpr auto kReaderMayTake = 5s;  // to open the other end of a pipe
constexpr int kMostLinks = 40;       // as many as Linux follows

/// Returns the path to which a chain of links leads; nothing need be there yet.
fs::path behind_links(fs::path path) {
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, error); ++i) {
    path = path.parent_path() / fs::read_symlink(path, error);  // an absolute one replaces the folder
  }
  return path;
}

/// Whether nothing is there yet, or a regular file. Devices, pipes and sockets are not replaced.
bool is_replaceable(const fs::path& target) {
  std::error_code error;
  const fs::file_status status = fs::status(target, error);
  if (fs::is_directory(status)) throw UsageError("is a folder, not a file", target.string(), "name a file");
  return !fs::exists(status) || fs::is_regular_file(status);
}

void write_all(int descriptor, std::string_view content, const fs::path& path) {
  while (!content.empty()) {
    const ssize_t count = ::write(descriptor, content.data(), content.size());
    if (count < 0 && errno != EINTR) throw_io("cannot write", path, errno);
    content.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    if (!content.empty()) throw_if_interrupted();  // a pipe that nobody reads
  }
}

/// Opens a device or a pipe for writing. A pipe is waited for until somebody reads it, for kReaderMayTake at most.
int open_to_write_into(const fs::path& path) {
  const auto last = std::chrono::steady_clock::now() + kReaderMayTake;
  for (;;) {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (descriptor >= 0) {
      (void)::fcntl(descriptor, F_SETFL, 0);  // writing may wait
      return descriptor;
    }
    const bool in_time = std::chrono::steady_clock::now() < last;
    if (errno != ENXIO || !in_time)
      throw_io(in_time ? "cannot open for writing" : "nobody reads this pipe", path, errno);
    throw_if_interrupted();
    std::this_thread::sleep_for(20ms);
  }
}

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
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) throw DataError("no such file", path.string(), "check the path");
  if (!S_ISREG(info.st_mode)) refuse_kind(info.st_mode, path);
  return static_cast<std::uint64_t>(info.st_size);
}

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
  if (path.empty() || path.find_first_of(std::string_view("\\\0", 2)) != std::string_view::npos) return false;
  const fs::path normal = fs::path(path).lexically_normal();  // without "." and empty parts; ".." leads
  return normal.native() == path && normal.is_relative() && normal.has_filename() && normal != "." &&
         *normal.begin() != "..";
}

bool lies_in(const fs::path& folder, const fs::path& path) {
  const fs::path here = fs::current_path();  // or "x" and "./x", which are not there yet, would be two
  const fs::path outer = fs::weakly_canonical(here / folder), inner = fs::weakly_canonical(here / path);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

void require_inside(const fs::path& root, const fs::path& path) {
  std::error_code error;
  if (fs::is_symlink(path, error) && !fs::exists(path, error)) {
    throw DataError("a link that leads nowhere stands where something is to be written", path.string(), "remove it");
  }
  if (lies_in(root, path)) return;
  throw DataError("a link leads out of " + root.string() + ", to " + fs::weakly_canonical(path).string(), path.string(),
                  "replace the link by what it should hold");
}

void make_room_for_files(int count) {
  const int first = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (first < 0) return;
  const int last = ::fcntl(first, F_DUPFD_CLOEXEC, count - 1);
  if (last >= 0) ::close(last);
  ::close(first);
}

void throw_io(const std::string& what, const std::filesystem::path& path, int error) {
  const char* remedy = "check the path and its permissions";
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    remedy = "free some disk space, raise the limit (ulimit -f) or choose another place, then run again";
  if (error == EACCES || error == EPERM || error == EROFS) remedy = "check the permissions, or choose another place";
  if (error == ENAMETOOLONG) remedy = "choose a shorter name";
  if (error == ELOOP) remedy = "links lead to each other: remove them, or name what they should lead to";
  if (error == EBADF) remedy = "this was closed: give a file, or start oscar with it open";
  if (error == ENOMEM) remedy = "raise the limit of memory (ulimit -v), or use a larger machine";
  if (error == ENOTDIR) remedy = "a part of this path is a file: choose another place";
  throw IoError(what + ": " + std::strerror(error), path.string(), remedy);
}

void write_file(const fs::path& path, std::string_view content) {
  AtomicFile out(path);
  write_unsynced(out.temporary_path(), content);
  out.commit();
}

void write_unsynced(const fs::path& path, std::string_view content) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() < 0) throw_io("cannot create", path, errno);
  write_all(file.get(), content, path);
}

AtomicFile::AtomicFile(const fs::path& target)
    : target_(is_replaceable(target) ? behind_links(target) : target),
      replaces_(is_replaceable(target_)),
      temporary_(sibling(replaces_ ? target_ : fs::temp_directory_path() / target_.filename(), "part")) {
  create_parent(target_);
}

AtomicFile::~AtomicFile() {
  std::error_code ignored;
  if (!committed_) fs::remove(temporary_, ignored);
}

void AtomicFile::commit() {
  if (!replaces_) return copy_into_target();
  sync_path(temporary_, O_RDONLY);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) throw_io("cannot rename into place", target_, errno);
  committed_ = true;
  sync_parent(target_);
}

void AtomicFile::copy_into_target() const {
  const Descriptor out(open_to_write_into(target_));
  write_all(out.get(), read_text(temporary_), target_);
}

fs::path sibling(const fs::path& target, const char* role) {
  // In containers that share a folder, every process may have the same id.
  return target.parent_path() / ("." + target.filename().string() + "." + role + "." + std::to_string(::getpid()) +
                                 "." + std::to_string(std::random_device{}()));
}

void create_parent(const fs::path& target) {
  if (target.parent_path().empty()) return;
  std::error_code error;
  fs::create_directories(target.parent_path(), error);
  if (error) throw_io("cannot create folder", target.parent_path(), error.value());
}

void sync_path(const fs::path& path, int flags) {
  const Descriptor file(::open(path.c_str(), flags | O_CLOEXEC));
  if (file.get() < 0 || ::fsync(file.get()) != 0) throw_io("cannot write to disk", path, errno);
}

void sync_parent(const fs::path& path) {
  sync_path(path.parent_path().empty() ? "." : path.parent_path(), O_RDONLY | O_DIRECTORY);
}

namespace {

/// Lets the disk begin with all files of a folder: then waiting for one after the other costs less.
void begin_to_sync(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const Descriptor file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    (void)::sync_file_range(file.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  }
}

/// Who finishes removes the lock file while holding it, so a lock can be won on a file that is no longer there: then
/// somebody else may hold one on a new file of that name, and only a lock on the file that the name stands for counts.
Descriptor lock_and_own(const fs::path& path, const fs::path& target) {
  for (;;) {
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (file.get() < 0) throw_io("cannot create a file beside the output", path, errno);
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      throw UsageError("another process is writing to this output folder", target.string(),
                       "wait for it, or choose another output");
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

void require_only(const fs::path& folder, const std::set<fs::path>& ours, const std::string& what) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const fs::path own = entry.path().lexically_relative(folder);
    const auto on_the_way = [&](const fs::path& file) {
      return !file.lexically_relative(own).string().starts_with("..");
    };
    const bool known = entry.is_symlink()     ? false
                       : entry.is_directory() ? std::ranges::any_of(ours, on_the_way)
                                              : entry.is_regular_file() && ours.contains(own);
    if (known) continue;
    throw UsageError("the folder holds what is no part of " + what + " that oscar wrote: " + own.string(),
                     folder.string(), "choose another output, or move away what should be kept and remove the folder");
  }
}

AtomicFolder::AtomicFolder(const fs::path& target, RequireOurs ours)
    : target_(without_trailing_slash(target)),
      // Without a number: whoever has the lock clears away what a process that was killed has left.
      staging_(target_.parent_path() / ("." + target_.filename().string() + ".part")),
      ours_(std::move(ours)) {
  create_parent(target_);
  const fs::path lock_path = lock_path_of(target_);
  Descriptor lock = lock_and_own(lock_path, target_);
  try {
    require_replaceable();
    std::error_code error;
    fs::remove_all(staging_, error);
    if (error || !fs::create_directories(staging_, error)) throw_io("cannot create folder", staging_, error.value());
  } catch (...) {
    ::unlink(lock_path.c_str());
    throw;
  }
  lock_ = lock.release();
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
  fs::remove(lock_path_of(target_), ignored);
  ::close(lock_);
}

void AtomicFolder::require_replaceable() const {
  std::error_code error;
  const fs::file_status status = fs::status(target_, error);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status)) {
    throw UsageError("the output is a folder, and a file has its name", target_.string(), "choose another output");
  }
  if (fs::is_empty(target_)) return;
  if (ours_) return ours_(target_);
  throw UsageError("the output exists already", target_.string(),
                   "choose another output, or pass --force to replace it");
}

void AtomicFolder::commit() {
  require_replaceable();  // a fit takes its time, in which somebody may have put a file there
  place_folder(staging_, target_);
}

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
  sync_parent(target);
}

}  // namespace oscar
