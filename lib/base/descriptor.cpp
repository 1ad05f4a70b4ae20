// SPDX-License-Identifier: MIT
#include "base/descriptor.hpp"

#include <cerrno>
#include <cstring>

#include "base/errors.hpp"

namespace oscar {

void throw_io(const std::string& what, const std::filesystem::path& path, int error) {
  const char* remedy = "";
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    remedy = "free some disk space, raise the limit (ulimit -f) or choose another place, then run again";
  if (error == EACCES || error == EPERM || error == EROFS) remedy = "check the permissions, or choose another place";
  if (error == ENOTDIR) remedy = "a part of this path is a file: choose another place";
  throw IoError(what + ": " + std::strerror(error), path.string(), remedy);
}

}  // namespace oscar
