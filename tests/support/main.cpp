// SPDX-License-Identifier: MIT
// Exit status: doctest's own if something failed; 77 if nothing failed but a case was skipped; else 0.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "support/support.hpp"

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  doctest::Context context(argc, argv);
  const int status = context.run();
  return status == 0 && oscar::test::any_case_skipped() ? kSkipped : status;
}
