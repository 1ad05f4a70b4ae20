// SPDX-License-Identifier: MIT
#include "zoo/cache.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "support/support.hpp"

namespace oscar {

TEST_CASE("the cache lies where the environment says") {
  const std::string home = std::getenv("HOME") != nullptr ? std::getenv("HOME") : "";
  ::setenv("HOME", "/home/me", 1);
  ::unsetenv("OSCAR_CACHE");
  ::unsetenv("XDG_CACHE_HOME");
  CHECK(default_cache_folder() == "/home/me/.cache/oscar");
  ::setenv("XDG_CACHE_HOME", "/xdg", 1);
  CHECK(default_cache_folder() == "/xdg/oscar");
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  CHECK(default_cache_folder() == "/home/me/.cache/oscar");
  ::setenv("OSCAR_CACHE", "/mine", 1);
  CHECK(default_cache_folder() == "/mine");
  ::unsetenv("OSCAR_CACHE");
  ::unsetenv("XDG_CACHE_HOME");
  ::unsetenv("HOME");
  CHECK_ERROR(default_cache_folder(), UsageError, "OSCAR_CACHE");
  ::setenv("HOME", home.c_str(), 1);
}

TEST_CASE("the cache remembers a name for each zoo, and forgets what is damaged") {
  const test::TemporaryFolder folder;
  const SetCache cache(folder.path());
  const std::string here = "http://here/zoo", there = "http://there/zoo";
  const std::string name = "a/b:latest";
  const std::string hash(64, 'd');

  CHECK_FALSE(cache.recall(here, name));
  cache.remember(here, name, hash);
  CHECK(cache.recall(here, name) == hash);
  CHECK_FALSE(cache.recall(there, name));
  CHECK_FALSE(cache.recall(here, "a/b:other"));
  for (const char* damaged : {"", "[]", R"({"manifest_sha256":"../../x"})", R"({"manifest_sha256":7})"}) {
    write_file(folder.path() / list_files(folder.path()).at(0), damaged);
    CHECK_FALSE(cache.recall(here, name));
  }
}

}  // namespace oscar
