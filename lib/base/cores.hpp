// SPDX-License-Identifier: MIT
// The processor cores that this process may run on: a launcher, a container or taskset can have bound it to some.
#pragma once

#include <string>

namespace oscar {

struct Cores {
  int count = 1;
  std::string list;  // "0-3,8"
};
[[nodiscard]] Cores usable_cores();

}  // namespace oscar
