// SPDX-License-Identifier: MIT
#include "zoo/pinned.hpp"

#include <doctest/doctest.h>

#include <filesystem>

#include "base/atomic_file.hpp"
#include "sample_set.hpp"
#include "support/support.hpp"
#include "zoo/publish.hpp"
#include "zoo/pull.hpp"

namespace oscar {
namespace fs = std::filesystem;

TEST_CASE("sets that others know by their hash are told: in a zoo, in the cache, signed; and no others") {
  const test::TemporaryFolder folder;
  Status status;
  const fs::path own = folder / "own";
  test::write_set(own, test::sample_set("x", "accepted"));
  PublishOptions publishing;
  publishing.set = own, publishing.zoo = (folder / "zoo").string(), publishing.name = "test/tiny";
  (void)publish(publishing, status, test::any_set);
  CHECK(why_pinned(own).empty());
  CHECK(why_pinned(folder / "nowhere").empty());

  CHECK(why_pinned(folder / "zoo/test/tiny/latest").find("knows this set by the hash") != std::string::npos);
  fs::create_directory_symlink(folder / "zoo/test/tiny/latest", folder / "link");
  CHECK_FALSE(why_pinned(folder / "link").empty());
  // Work of somebody's own, which only lies beside what the zoo has.
  test::write_set(folder / "zoo/work", test::sample_set("y", ""));
  CHECK(why_pinned(folder / "zoo/work").empty());

  PullOptions pulling;
  pulling.name = "test/tiny", pulling.zoo = publishing.zoo, pulling.cache = folder / "cache";
  CHECK(why_pinned(pull(pulling, status, open_transport, test::any_set).path).find("in the cache") !=
        std::string::npos);
  pulling.out = folder / "out";
  CHECK(why_pinned(pull(pulling, status, open_transport, test::any_set).path).empty());

  write_file(own / "signature.json", "{}");
  CHECK(why_pinned(own) == "the manifest of this set is signed");
}

}  // namespace oscar
