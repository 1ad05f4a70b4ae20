// SPDX-License-Identifier: MIT
#include "base/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/descriptor.hpp"
#include "base/errors.hpp"
#include "base/place_folder.hpp"
#include "base/status.hpp"

namespace oscar {

void throw_io(const std::string& what, const fs::path& path, int error) {
  const char* remedy = "";
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    remedy = "free some disk space, raise the limit (ulimit -f) or choose another place, then run again";
  if (error == EACCES || error == EPERM || error == EROFS) remedy = "check the permissions, or choose another place";
  if (error == ENOTDIR) remedy = "a part of this path is a file: choose another place";
  throw IoError(what + ": " + std::strerror(error), path.string(), remedy);
}

namespace {

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
