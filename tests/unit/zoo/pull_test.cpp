// SPDX-License-Identifier: MIT
#include "zoo/pull.hpp"

#include <doctest/doctest.h>

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "sample_set.hpp"
#include "support/support.hpp"
#include "zoo/publish.hpp"

namespace oscar {
namespace {

using Files = std::map<std::string, std::string>;

struct PullFixture {
  test::TemporaryFolder folder;
  test::FakeZoo zoo;
  test::RecordedStatus status;
  Files set = test::sample_set("x", "accepted");
  PullOptions options;

  PullFixture() {
    zoo.add("test/tiny", "latest", set);
    options.name = "test/tiny";
    options.zoo = "http://fake/zoo";
    options.cache = folder / "cache";
    options.transfer = {.timeout_seconds = 1, .retries = 1, .first_pause_seconds = 0.001};
  }
  PullResult run() { return pull(options, status, zoo.factory(), test::any_set); }
  [[nodiscard]] std::string hash() const { return sha256_hex(set.at("manifest.json")); }
};

constexpr char kPullKeys[] = "test/tiny/latest/k_rotation_qqt_r_h_pbr.pt";

}  // namespace

TEST_CASE("pull asks for the index, the manifest, and the files, each once, the largest first") {
  PullFixture fixture;
  const PullResult result = fixture.run();
  CHECK(result.fetched);
  CHECK(result.path == fixture.folder / ("cache/sets/" + fixture.hash()));
  CHECK(test::read_folder(result.path) == fixture.set);
  CHECK(fixture.zoo.asked == std::vector<std::string>{"index.json", "test/tiny/latest/manifest.json", kPullKeys,
                                                      "test/tiny/latest/v_rotation_sst_r_h_pbr.pt",
                                                      "test/tiny/latest/tables/clip.json"});
}

TEST_CASE("a cached name needs no network until it is refreshed") {
  PullFixture fixture;
  (void)fixture.run();
  fixture.zoo.asked.clear();
  CHECK_FALSE(fixture.run().fetched);
  CHECK(fixture.zoo.asked.empty());

  const Files newer = test::sample_set("y", "accepted");
  fixture.zoo.add("test/tiny", "latest", newer);
  CHECK(test::read_folder(fixture.run().path) == fixture.set);
  fixture.options.refresh = true;
  CHECK(test::read_folder(fixture.run().path) == newer);
  fixture.options.refresh = false;
  CHECK(test::read_folder(fixture.run().path) == newer);
}

TEST_CASE("refreshing what did not change asks for the index only") {
  PullFixture fixture;
  (void)fixture.run();
  fixture.zoo.asked.clear();
  fixture.options.refresh = true;
  CHECK_FALSE(fixture.run().fetched);
  CHECK(fixture.zoo.asked == std::vector<std::string>{"index.json"});
}

TEST_CASE("a damaged cache entry is fetched again") {
  PullFixture fixture;
  const PullResult first = fixture.run();
  for (const bool refresh : {false, true}) {
    fixture.options.refresh = refresh;
    for (const char* other : {"", "[]\n"}) {  // of another size, and of the same
      write_file(first.path / "tables/clip.json", other);
      CHECK(fixture.run().fetched);
      CHECK(test::read_folder(first.path) == fixture.set);
    }
    fs::remove(first.path / "tables/clip.json");
    CHECK(fixture.run().fetched);
  }
}

TEST_CASE("a folder zoo is asked every time, so it is never stale") {
  PullFixture fixture;
  const auto publish_seed = [&](const std::string& seed) {
    test::write_set(fixture.folder / seed, test::sample_set(seed, "accepted"));
    (void)publish({fixture.folder / seed, (fixture.folder / "zoo").string(), "test/tiny", true}, fixture.status,
                  test::any_set);
  };
  fixture.options.zoo = (fixture.folder / "zoo").string();
  for (const char* seed : {"one", "two"}) {
    publish_seed(seed);
    CHECK(test::read_folder(pull(fixture.options, fixture.status, open_transport, test::any_set).path) ==
          test::sample_set(seed, "accepted"));
  }
  fixture.options.zoo = "file://" + (fixture.folder / "zoo").string();
  CHECK_FALSE(pull(fixture.options, fixture.status, open_transport, test::any_set).fetched);
}

TEST_CASE("--out gets the set and nothing goes to the cache; another set there needs force") {
  PullFixture fixture;
  fixture.options.out = fixture.folder / "out";
  CHECK(fixture.run().path == fixture.folder / "out");
  CHECK(test::read_folder(fixture.folder / "out") == fixture.set);
  CHECK_FALSE(fs::exists(fixture.folder / "cache/sets"));
  CHECK(fs::is_empty(fixture.folder / "cache/partial"));
  CHECK_FALSE(fixture.run().fetched);  // exactly this is there

  const Files newer = test::sample_set("y", "accepted");
  fixture.zoo.add("test/tiny", "latest", newer);
  CHECK_ERROR(fixture.run(), UsageError, "exists already");
  CHECK(test::read_folder(fixture.folder / "out") == fixture.set);
  fixture.options.force = true;
  CHECK(fixture.run().fetched);
  CHECK(test::read_folder(fixture.folder / "out") == newer);

  write_file(fixture.folder / "home/letter.txt", "dear");
  fixture.options.out = fixture.folder / "home";
  CHECK_ERROR(fixture.run(), UsageError, "not a set of oscar");
  CHECK(read_text(fixture.folder / "home/letter.txt") == "dear");
}

TEST_CASE("--out takes a cached set from the cache") {
  PullFixture fixture;
  (void)fixture.run();
  fixture.zoo.files.clear();
  fixture.options.out = fixture.folder / "out";
  CHECK(test::read_folder(fixture.run().path) == fixture.set);
}

TEST_CASE("a set that verify has not accepted comes with a warning, from the cache too") {
  PullFixture fixture;
  fixture.zoo.add("test/tiny", "bad", test::sample_set("z", "rejected"));
  fixture.options.name = "test/tiny:bad";
  (void)fixture.run();
  (void)fixture.run();
  CHECK(fixture.status.warnings.size() == 2);
  CHECK(fixture.status.warnings.back().find("vllm rejected") != std::string::npos);
  fixture.zoo.add("test/tiny", "bare", test::sample_set("y", "not_measured"));
  fixture.options.name = "test/tiny:bare";
  (void)fixture.run();
  CHECK(
      fixture.status.warnings.back() ==
      "its maker's verify has accepted this set for no reader (vllm not_measured, llamacpp not verified): use it with "
      "care");
}

}  // namespace oscar
