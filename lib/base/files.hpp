// SPDX-License-Identifier: MIT
// Reading files, and what their paths may be. Writing is in atomic_file.hpp. Non-goal: a virtual file system.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace oscar {

namespace fs = std::filesystem;

/// Whole content of a file. Throws DataError if it is missing or no regular file (a folder, a pipe, a device), as all
/// that reads files here does; IoError if it cannot be read.
[[nodiscard]] std::string read_text(const fs::path& path);
/// Size in bytes. Throws DataError if the file is missing or not a regular file.
[[nodiscard]] std::uint64_t regular_file_size(const fs::path& path);
/// A file mapped for reading, and kept open. Move-only.
class MappedFile {
 public:
  explicit MappedFile(const fs::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  /// Returns the descriptor of the mapped file, for pread().
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }

 private:
  int descriptor_ = -1;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Reads `out.size()` bytes at `offset`. Throws DataError if the file ends before.
void read_at(const fs::path& path, std::uint64_t offset, std::span<std::byte> out);
/// Reads `out.size()` bytes at `offset` of an open file. Throws DataError if the file ends before.
void read_at(int descriptor, std::uint64_t offset, std::span<std::byte> out);

/// Regular files under `folder`, as sorted relative paths.
[[nodiscard]] std::vector<fs::path> list_files(const fs::path& folder);

/// True for a relative path that stays inside the folder it is joined to (no "..", no root, no empty part, no
/// backslash).
[[nodiscard]] bool is_safe_relative_path(std::string_view path);

/// Whether `path` is `folder`, or lies in it, links followed as far as they lead. Neither need exist.
[[nodiscard]] bool lies_in(const fs::path& folder, const fs::path& path);

/// Throws DataError if a link on the way leads `path` out of the folder `root`, so that writing there would change what
/// lies elsewhere. What does not exist yet leads nowhere.
void require_inside(const fs::path& root, const fs::path& path);

/// Room for `count` open files at a time, as far as the process may have so many. Where a process with several threads
/// outgrows its table of open files, Linux waits for all processors (10 to 30 ms) before it goes on, and every thread
/// that opens a file waits too: better done once, while others have something to do.
void make_room_for_files(int count);

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(Descriptor&& other) noexcept : value_(other.release()) {}
  Descriptor& operator=(Descriptor&&) = delete;
  [[nodiscard]] int get() const noexcept { return value_; }
  [[nodiscard]] int release() noexcept { return std::exchange(value_, -1); }

 private:
  int value_;
};

/// Throws IoError: what failed, the system's words for `error` (errno), and what helps against it.
[[noreturn]] void throw_io(const std::string& what, const std::filesystem::path& path, int error);

}  // namespace oscar
