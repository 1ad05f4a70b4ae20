// SPDX-License-Identifier: MIT
// OSCAR_CHECK states what the code itself guarantees; a failure is our bug, not the user's.
#pragma once

#include <stdexcept>
#include <string>

namespace oscar {

[[noreturn]] inline void check_failed(const char* condition, const char* file, int line) {
  throw std::logic_error(std::string("internal error: ") + condition + " does not hold at " + file + ":" +
                         std::to_string(line));
}

}  // namespace oscar

#define OSCAR_CHECK(condition)                                               \
  do {                                                                       \
    if (!(condition)) ::oscar::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)
