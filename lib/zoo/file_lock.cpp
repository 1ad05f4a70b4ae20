// SPDX-License-Identifier: MIT
#include "zoo/file_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "base/status.hpp"

namespace oscar {

FileLock::FileLock(const std::filesystem::path& path, bool wait) {
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

}  // namespace oscar
