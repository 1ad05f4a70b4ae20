// SPDX-License-Identifier: MIT
// Folders that are either whole or absent: written under a temporary name beside the target, synced, renamed. What lies
// at the target is replaced only if oscar wrote all of it.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>

namespace oscar {

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
