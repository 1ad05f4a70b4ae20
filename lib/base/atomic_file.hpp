// SPDX-License-Identifier: MIT
// Files that are either whole or absent: written under a temporary name beside the target, synced, renamed. A link is
// followed, so that it stays a link; what is no regular file (a device, a pipe) is written into, never replaced.
#pragma once

#include <filesystem>
#include <string_view>

namespace oscar {

/// Writes `content` atomically.
void write_file(const std::filesystem::path& path, std::string_view content);
/// Writes `content` at once and without waiting for the disk: a folder under construction is synced when it is whole.
/// Throws IoError.
void write_unsynced(const std::filesystem::path& path, std::string_view content);

/// A file under construction. commit() gives it its final name; without commit() the destructor removes every trace.
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

/// Returns ".<name>.<role>.<process id>" in the folder of `target`, where something is made before it gets that name.
[[nodiscard]] std::filesystem::path sibling(const std::filesystem::path& target, const char* role);
/// Makes the folder of `target`, and those above. Throws IoError.
void create_parent(const std::filesystem::path& target);
/// Waits until a file, or the entries of a folder, are on disk. Throws IoError.
void sync_path(const std::filesystem::path& path, int flags);
/// Calls sync_path() for the folder that holds `path`.
void sync_parent(const std::filesystem::path& path);

}  // namespace oscar
