// SPDX-License-Identifier: MIT
#include "base/open_files.hpp"

#include <fcntl.h>
#include <unistd.h>

namespace oscar {

void make_room_for_files(int count) {
  const int first = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (first < 0) return;
  const int last = ::fcntl(first, F_DUPFD_CLOEXEC, count - 1);
  if (last >= 0) ::close(last);
  ::close(first);
}

}  // namespace oscar
