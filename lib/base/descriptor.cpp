// SPDX-License-Identifier: MIT
#include "base/descriptor.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.hpp"

namespace oscar {

Descriptor::~Descriptor() {
  if (value_ >= 0) ::close(value_);
}

int Descriptor::release() noexcept { return std::exchange(value_, -1); }

void throw_io(const std::string& what, const std::filesystem::path& path, int error) {
  const char* remedy = "";
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    remedy = "free some disk space or choose another place, then run again";
  if (error == EACCES || error == EPERM || error == EROFS) remedy = "check the permissions, or choose another place";
  if (error == ENOTDIR) remedy = "a part of this path is a file: choose another place";
  throw IoError(what + ": " + std::strerror(error), path.string(), remedy);
}

}  // namespace oscar
