// SPDX-License-Identifier: MIT
#include "base/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/errors.hpp"

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

}  // namespace oscar
