// SPDX-License-Identifier: MIT
// Reading files, and what their paths may be. Non-goal: a virtual file system.
// Files and folders that are written are either whole or absent: written under a temporary name beside the target,
// synced, renamed.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
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

/// Writes `content` atomically.
void write_file(const std::filesystem::path& path, std::string_view content);
/// Writes `content` at once and without waiting for the disk: a folder under construction is synced when it is whole.
/// Throws IoError.
void write_unsynced(const std::filesystem::path& path, std::string_view content);

/// A file under construction. commit() gives it its final name; without commit() the destructor removes every trace. A
/// link is followed, so that it stays a link; what is no regular file (a device, a pipe) is written into, never
/// replaced.
class AtomicFile {
 public:
  /// Throws UsageError if `target` is a folder, IoError if its folder cannot be made.
  explicit AtomicFile(const std::filesystem::path& target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Returns the path at which writers that open files by name (HDF5) must write.
  [[nodiscard]] const std::filesystem::path& temporary_path() const noexcept { return temporary_; }
  /// Syncs and renames; or copies into a device or pipe. Throws IoError (for example: disk full).
  void commit();

 private:
  void copy_into_target() const;

  std::filesystem::path target_;
  bool replaces_;  // false: the target is a device or a pipe
  std::filesystem::path temporary_;
  bool committed_ = false;
};

/// Returns ".<name>.<role>.<process id>.<random number>" in the folder of `target`, where something is made before it
/// gets that name.
[[nodiscard]] std::filesystem::path sibling(const std::filesystem::path& target, const char* role);
/// Makes the folder of `target`, and those above. Throws IoError.
void create_parent(const std::filesystem::path& target);
/// Waits until a file, or the entries of a folder, are on disk. Throws IoError.
void sync_path(const std::filesystem::path& path, int flags);
/// Calls sync_path() for the folder that holds `path`.
void sync_parent(const std::filesystem::path& path);

/// Throws UsageError that names what in an existing folder oscar did not write.
using RequireOurs = std::function<void(const std::filesystem::path& folder)>;

/// Does the work of a RequireOurs: throws UsageError unless every entry below `folder` is a file among `ours` (relative
/// paths), or a folder on the way to one. what: "a rotation set".
void require_only(const std::filesystem::path& folder, const std::set<std::filesystem::path>& ours,
                  const std::string& what);

/// A folder under construction. commit() gives it its final name; without commit() the destructor removes every trace.
/// The target must not exist, or must be empty, or must be oscar's own by `ours`, which is asked again before it is
/// replaced. If the target is a link, the link is replaced, and what it leads to stays. A lock keeps two processes from
/// building the same target.
class AtomicFolder {
 public:
  /// ours: empty if nothing may be replaced. Throws UsageError.
  AtomicFolder(const std::filesystem::path& target, RequireOurs ours);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Returns the folder into which the files go.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return staging_; }
  /// Syncs every file and swaps the folder into place; a folder that was there is removed.
  void commit();

 private:
  void require_replaceable() const;

  std::filesystem::path target_, staging_;
  RequireOurs ours_;
  int lock_ = -1;
};

/// The last step of a folder under construction, for those that keep one across runs: syncs every file of the folder
/// `fresh` and gives it the name `target`; a folder that was there is swapped out and removed. Both must be on one file
/// system. Callers hold a lock. Throws IoError.
void place_folder(const std::filesystem::path& fresh, const std::filesystem::path& target);

}  // namespace oscar
