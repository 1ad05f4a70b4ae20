// SPDX-License-Identifier: MIT
#include "zoo/index.hpp"

#include <doctest/doctest.h>

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "sample_set.hpp"
#include "support/support.hpp"
#include "zoo/publish.hpp"
#include "zoo/pull.hpp"

namespace oscar {
namespace {

ZooEntry entry(const std::string& model, const std::string& tag, char hash = 'a') {
  return {model, tag, model + "/" + tag, std::string(64, hash), 10, 100, Json::object(), "2026-01-02T03:04:05Z", false};
}

ZooIndex reread(const Json& document) { return {document.dump(), "here"}; }

}  // namespace

TEST_CASE("entries are found by tag and by content, and stay sorted") {
  ZooIndex index;
  index.put(entry("b/b", "two"));
  index.put(entry("b/b", "one", 'b'));
  index.put(entry("a/a", "one"));
  const ZooIndex again = reread(index.document());

  CHECK(again.document()["entries"][0]["name"] == "a/a");
  CHECK(again.document()["entries"][1]["tag"] == "one");
  CHECK(again.find(parse_set_name("b/b:one"))->manifest_sha256 == std::string(64, 'b'));
  CHECK(again.find(parse_set_name("b/b@sha256:" + std::string(64, 'a')))->tag == "two");
  CHECK_FALSE(again.find(parse_set_name("a/a@sha256:" + std::string(64, 'b'))));
  CHECK_FALSE(again.find(parse_set_name("a/a")));
}

TEST_CASE("an entry with the same name and tag is replaced, also in an index that is not sorted") {
  ZooIndex sorted;
  sorted.put(entry("a/a", "x"));
  sorted.put(entry("b/b", "x"));
  Json document = sorted.document();
  std::swap(document["entries"][0], document["entries"][1]);
  ZooIndex index = reread(document);
  index.put(entry("a/a", "x", 'c'));
  CHECK(index.document()["entries"].size() == 2);
  CHECK(reread(index.document()).find(parse_set_name("a/a:x"))->manifest_sha256 == std::string(64, 'c'));
}

TEST_CASE("members that a later version added survive an update") {
  ZooIndex index;
  index.put(entry("a/a", "x"));
  Json document = index.document();
  document["motto"] = "kept";
  document["entries"][0]["rating"] = true;
  ZooIndex later = reread(document);
  later.put(entry("b/b", "x"));
  CHECK(later.document()["motto"] == "kept");
  CHECK(later.document()["entries"][0]["rating"] == true);
}

TEST_CASE("an unknown name is answered with names that exist") {
  ZooIndex index;
  CHECK_ERROR(index.require(parse_set_name("a/a"), "here"), DataError, "empty");
  index.put(entry("Qwen/Qwen3-8B", "int2"));
  CHECK_ERROR(index.require(parse_set_name("Qwen/Qwen3-8B"), "here"), DataError, "did you mean Qwen/Qwen3-8B:int2");
  CHECK_ERROR(index.require(parse_set_name("qwen/qwen3-8b:int2"), "here"), DataError,
              "did you mean Qwen/Qwen3-8B:int2");
  CHECK_ERROR(index.require(parse_set_name("x/y"), "here"), DataError, "oscar zoo list");
}

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
