// SPDX-License-Identifier: MIT
#include "base/atomic_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include "base/descriptor.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/status.hpp"

namespace oscar {
namespace {

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
    if (count < 0 && errno == EINTR) {
      throw_if_interrupted();
      continue;
    }
    if (count < 0) throw_io("cannot write", path, errno);
    content.remove_prefix(static_cast<std::size_t>(count));
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
  return target.parent_path() / ("." + target.filename().string() + "." + role + "." + std::to_string(::getpid()));
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

}  // namespace oscar
