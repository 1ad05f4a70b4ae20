// SPDX-License-Identifier: MIT
#include "base/files.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "base/open_files.hpp"
#include "support/support.hpp"

namespace oscar {

TEST_CASE("a written file has its content and leaves nothing else behind") {
  const test::TemporaryFolder folder;

  write_file(folder / "a/b.txt", "hello");

  CHECK(read_text(folder / "a/b.txt") == "hello");
  CHECK(list_files(folder.path()) == std::vector<fs::path>{"a/b.txt"});
}

TEST_CASE("a file that is not committed is never seen") {
  const test::TemporaryFolder folder;
  {
    const AtomicFile file(folder / "x");
    write_file(file.temporary_path(), "half");
  }
  CHECK(list_files(folder.path()).empty());
}

TEST_CASE("of many writers of a folder, one writes at a time") {
  const test::TemporaryFolder folder;
  std::atomic<int> inside = 0, overlaps = 0, turns = 0;
  const auto write = [&] {
    while (turns < 4000) {
      try {
        const AtomicFolder out(folder / "set", true);
        if (++inside > 1) ++overlaps;
        ++turns;
        --inside;
      } catch (const UsageError&) {
        std::this_thread::yield();
      }
    }
  };
  std::vector<std::thread> writers;
  for (int i = 0; i < 8; ++i) writers.emplace_back(write);
  for (std::thread& writer : writers) writer.join();

  CHECK(overlaps == 0);
  CHECK(list_files(folder.path()).empty());
}

TEST_CASE("a folder appears whole, replaces only when told, and has one writer at a time") {
  const test::TemporaryFolder folder;
  {
    AtomicFolder out(folder / "set", false);
    write_file(out.path() / "one", "1");
    CHECK_FALSE(fs::exists(folder / "set"));
    CHECK_ERROR(AtomicFolder(folder / "set", false), UsageError, "another process");
    out.commit();
  }
  CHECK(list_files(folder.path()) == std::vector<fs::path>{"set/one"});
  CHECK_ERROR(AtomicFolder(folder / "set", false), UsageError, "exists already");
  {
    AtomicFolder out(folder / "set/", true);
    write_file(out.path() / "two", "2");
    out.commit();
  }
  CHECK(list_files(folder.path()) == std::vector<fs::path>{"set/two"});
}

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
