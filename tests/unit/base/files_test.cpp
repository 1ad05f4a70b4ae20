// SPDX-License-Identifier: MIT
#include "base/files.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "support/support.hpp"

namespace oscar {
namespace {

void anything(const fs::path&) {}

}  // namespace

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

TEST_CASE("writers of one file do not meet, although their processes have the same id, as in containers") {
  const test::TemporaryFolder folder;
  AtomicFile first(folder / "x"), second(folder / "x");
  write_unsynced(first.temporary_path(), "first");
  write_unsynced(second.temporary_path(), "second");
  first.commit();
  CHECK(read_text(folder / "x") == "first");
  second.commit();
  CHECK(read_text(folder / "x") == "second");
  CHECK(list_files(folder.path()) == std::vector<fs::path>{"x"});
}

TEST_CASE("of many writers of a folder, one writes at a time") {
  const test::TemporaryFolder folder;
  std::atomic<int> inside = 0, overlaps = 0, turns = 0;
  const auto write = [&] {
    while (turns < 4000) {
      try {
        const AtomicFolder out(folder / "set", anything);
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
    AtomicFolder out(folder / "set", {});
    write_file(out.path() / "one", "1");
    CHECK_FALSE(fs::exists(folder / "set"));
    CHECK_ERROR(AtomicFolder(folder / "set", {}), UsageError, "another process");
    out.commit();
  }
  CHECK(list_files(folder.path()) == std::vector<fs::path>{"set/one"});
  CHECK_ERROR(AtomicFolder(folder / "set", {}), UsageError, "exists already");
  {
    AtomicFolder out(folder / "set/", anything);
    write_file(out.path() / "two", "2");
    out.commit();
  }
  CHECK(list_files(folder.path()) == std::vector<fs::path>{"set/two"});
}

TEST_CASE("a link stays a link, and what it leads to is written whole or not at all") {
  const test::TemporaryFolder folder;
  write_file(folder / "there/target", "old");
  fs::create_symlink("there/target", folder / "link");
  fs::create_symlink("there/new", folder / "dangling");
  write_file(folder / "link", "new");
  write_file(folder / "dangling", "made");
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(read_text(folder / "there/target") == "new");
  CHECK(fs::is_symlink(folder / "dangling"));
  CHECK(read_text(folder / "there/new") == "made");
  CHECK(list_files(folder / "there") == std::vector<fs::path>{"new", "target"});
}

TEST_CASE("a pipe is written into, and a device stays a device") {
  const test::TemporaryFolder folder;
  const fs::path pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::string heard;
  std::thread reader([&] {
    FILE* file = std::fopen(pipe.c_str(), "r");
    for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) heard += static_cast<char>(c);
    std::fclose(file);
  });
  write_file(pipe, "through the pipe");
  reader.join();
  CHECK(heard == "through the pipe");
  CHECK(fs::is_fifo(pipe));
  write_file("/dev/null", "nowhere");
  CHECK(fs::is_character_file("/dev/null"));
  CHECK_ERROR(write_file("/dev/full", "too much"), IoError, "No space left");
  CHECK_ERROR(write_file(folder.path(), "x"), UsageError, "is a folder");
}

TEST_CASE("only what is ours is replaced, and it is looked at again before it is") {
  const test::TemporaryFolder folder;
  const RequireOurs ours = [](const fs::path& old) { require_only(old, {"one", "sub/two"}, "a set"); };
  write_file(folder / "set/one", "1");
  write_file(folder / "set/sub/two", "2");
  {
    AtomicFolder out(folder / "set", ours);
    write_file(folder / "set/letter.txt", "dear");
    CHECK_ERROR(out.commit(), UsageError, "no part of a set that oscar wrote: letter.txt");
  }
  CHECK(read_text(folder / "set/letter.txt") == "dear");
  CHECK_ERROR(AtomicFolder(folder / "set", ours), UsageError, "letter.txt");
  fs::remove(folder / "set/letter.txt");
  fs::create_directories(folder / "set/empty");
  CHECK_ERROR(AtomicFolder(folder / "set", ours), UsageError, "empty");
  fs::remove(folder / "set/empty");
  fs::create_symlink("/etc/passwd", folder / "set/sub/link");
  CHECK_ERROR(AtomicFolder(folder / "set", ours), UsageError, "sub/link");
  fs::remove(folder / "set/sub/link");
  fs::create_directory_symlink("set", folder / "alias");
  {
    AtomicFolder out(folder / "alias", ours);
    write_file(out.path() / "three", "3");
    out.commit();
  }
  CHECK_FALSE(fs::is_symlink(folder / "alias"));
  CHECK(list_files(folder / "alias") == std::vector<fs::path>{"three"});
  CHECK(list_files(folder / "set") == std::vector<fs::path>{"one", "sub/two"});
  write_file(folder / "file", "mine");
  CHECK_ERROR(AtomicFolder(folder / "file", anything), UsageError, "a file has its name");
  CHECK(read_text(folder / "file") == "mine");
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
