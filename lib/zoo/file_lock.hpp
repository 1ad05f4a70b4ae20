// SPDX-License-Identifier: MIT
// A lock between processes.
#pragma once

#include <filesystem>

namespace oscar {

/// An exclusive lock on `path` (created if missing), released by the destructor or by the end of the process.
class FileLock {
 public:
  /// wait = false: throws IoError at once if another process holds it.
  FileLock(const std::filesystem::path& path, bool wait);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace oscar
