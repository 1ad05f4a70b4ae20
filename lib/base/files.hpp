// SPDX-License-Identifier: MIT
// Files that are either whole or absent. Everything oscar writes goes through AtomicFile or AtomicFolder: written under
// a temporary name beside the target, synced, renamed. Non-goal: a virtual file system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

namespace fs = std::filesystem;

/// Whole content of a file. Throws DataError if it is missing or no regular file (a folder, a pipe, a device), as all
/// that reads files here does; IoError if it cannot be read.
[[nodiscard]] std::string read_text(const fs::path& path);
/// Size in bytes. Throws DataError if the file is missing or not a regular file.
[[nodiscard]] std::uint64_t regular_file_size(const fs::path& path);
/// Writes `content` atomically.
void write_file(const fs::path& path, std::string_view content);
/// For files of a folder under construction, which is synced when it is whole. Throws IoError.
void write_unsynced(const fs::path& path, std::string_view content);

/// A file under construction. commit() gives it its final name; without commit() the destructor removes every trace.
class AtomicFile {
 public:
  explicit AtomicFile(fs::path target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Where writers that open files by name (HDF5, libtorch) must write.
  [[nodiscard]] const fs::path& temporary_path() const noexcept { return temporary_; }
  /// Syncs and renames. Throws IoError (for example: disk full).
  void commit();

 private:
  fs::path target_, temporary_;
  bool committed_ = false;
};

/// A folder under construction, the same way. The target must not exist, or must be empty, unless `replace` is set;
/// otherwise the constructor throws UsageError. A lock keeps two processes from building the same target.
class AtomicFolder {
 public:
  AtomicFolder(fs::path target, bool replace);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Where to put the files.
  [[nodiscard]] const fs::path& path() const noexcept { return staging_; }
  /// Syncs every file and swaps the folder into place; a folder that was there is removed by the destructor.
  void commit();

 private:
  fs::path target_, staging_;
  bool replace_;
  int lock_ = -1;
};

/// An exclusive lock on `path` (created if missing), released by the destructor or by the end of the process.
class FileLock {
 public:
  /// wait = false: throws IoError at once if another process holds it.
  FileLock(const fs::path& path, bool wait);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// A file mapped for reading, and kept open. Move-only.
class MappedFile {
 public:
  explicit MappedFile(const fs::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  /// For pread().
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }

 private:
  int descriptor_ = -1;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Reads `out.size()` bytes at `offset`. Throws DataError if the file ends before.
void read_at(const fs::path& path, std::uint64_t offset, std::span<std::byte> out);
/// The same for an open file.
void read_at(int descriptor, std::uint64_t offset, std::span<std::byte> out);

/// Regular files under `folder`, as sorted relative paths.
[[nodiscard]] std::vector<fs::path> list_files(const fs::path& folder);

/// True for a relative path that stays inside the folder it is joined to (no "..", no root, no empty part, no
/// backslash).
[[nodiscard]] bool is_safe_relative_path(std::string_view path);

}  // namespace oscar
