// SPDX-License-Identifier: MIT
#include "base/files.hpp"

#include <doctest/doctest.h>

#include "support/support.hpp"

namespace oscar {

TEST_CASE("reading what is not there says what and where") {
  CHECK_ERROR(read_text("/nowhere/file"), DataError, "/nowhere/file");
  CHECK_ERROR(MappedFile("/"), DataError, "is a folder");
}

TEST_CASE("only paths that stay inside are safe") {
  for (const char* good : {"a", "a/b.pt", "..a/b..", "a.b/c"}) CHECK_MESSAGE(is_safe_relative_path(good), good);
  for (const char* bad : {"", "/a", "..", "a/../b", "a//b", "a/", "./a", "a\\b"}) {
    CHECK_FALSE_MESSAGE(is_safe_relative_path(bad), bad);
  }
}

TEST_CASE("a link may not lead out of the folder that is written to") {
  const test::TemporaryFolder folder;
  fs::create_directories(folder / "zoo/org");
  fs::create_directories(folder / "home");
  CHECK_NOTHROW(require_inside(folder / "zoo", folder / "zoo/org/new/set"));
  fs::create_directory_symlink(folder / "home", folder / "zoo/org/model");
  CHECK_ERROR(require_inside(folder / "zoo", folder / "zoo/org/model/v1"), DataError, "a link leads out of");
  fs::create_directory_symlink("org", folder / "zoo/alias");
  CHECK_NOTHROW(require_inside(folder / "zoo", folder / "zoo/alias/x"));
  CHECK_THROWS_AS(require_inside(folder / "zoo/org", folder / "zoo"), DataError);
}

TEST_CASE("room for open files is there before they are") {
  const auto room = [] {
    const std::string status = read_text("/proc/self/status");
    return std::stoi(status.substr(status.find("FDSize:") + 7));
  };
  REQUIRE(room() < 700);

  make_room_for_files(700);

  CHECK(room() >= 700);
}

}  // namespace oscar
