// SPDX-License-Identifier: MIT
// Files and folders that are either whole or absent: written under a temporary name beside the target, synced, renamed.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>

namespace oscar {

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

/// Returns ".<name>.<role>.<process id>" in the folder of `target`, where something is made before it gets that name.
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
