// SPDX-License-Identifier: MIT
#include "zoo/publish.hpp"

#include <doctest/doctest.h>

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "sample_set.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

struct PublishFixture {
  test::TemporaryFolder folder;
  test::RecordedStatus status;

  PublishOptions options(const std::string& seed, const std::string& verdict, const std::string& name = "test/tiny") {
    const fs::path set = folder / ("set-" + seed + "-" + verdict);
    test::write_set(set, test::sample_set(seed, verdict));
    return {set, zoo().string(), name, false};
  }
  [[nodiscard]] fs::path zoo() const { return folder / "zoo"; }
  [[nodiscard]] ZooIndex index() const { return {read_text(zoo() / kIndexName), "index"}; }
};

}  // namespace

TEST_CASE("a published set is whole, and the index says what it is") {
  PublishFixture fixture;
  const PublishResult result = publish(fixture.options("x", "accepted"), fixture.status, test::any_set);

  CHECK(result.changed);
  CHECK(result.name == "test/tiny:latest");
  CHECK(test::read_folder(fixture.zoo() / "test/tiny/latest") == test::sample_set("x", "accepted"));
  const ZooEntry entry = fixture.index().require(parse_set_name("test/tiny"), "");
  CHECK(entry.path == "test/tiny/latest");
  CHECK_FALSE(entry.forced);
  CHECK(entry.summary["recipe"] == "oscar");
  CHECK(entry.summary["parts"]["rotations"] ==
        Json{{"recipe", "oscar"}, {"bits", {{"key", 2.0}, {"value", 2.0}}}, {"num_layers", 1}});
  CHECK(entry.summary["readers"] == Json{{"vllm", "rotations"}, {"llamacpp", "rotations"}});
  CHECK(entry.summary["verification"]["attention"] == Json{{"softmax_kl", 0.01}});
  CHECK_FALSE(entry.summary["verification"].contains("layers"));
}

TEST_CASE("publishing the same again repairs a damaged copy") {
  PublishFixture fixture;
  const PublishOptions options = fixture.options("x", "accepted");
  (void)publish(options, fixture.status, test::any_set);
  write_file(fixture.zoo() / "test/tiny/latest/tables/clip.json", "[]\n");
  CHECK(publish(options, fixture.status, test::any_set).changed);
  CHECK(test::read_folder(fixture.zoo() / "test/tiny/latest") == test::sample_set("x", "accepted"));
}

TEST_CASE("a tag keeps its content unless forced") {
  PublishFixture fixture;
  (void)publish(fixture.options("x", "accepted"), fixture.status, test::any_set);
  PublishOptions other = fixture.options("y", "accepted");
  CHECK_ERROR(publish(other, fixture.status, test::any_set), UsageError, "another set under test/tiny:latest");
  CHECK(test::read_folder(fixture.zoo() / "test/tiny/latest") == test::sample_set("x", "accepted"));

  other.name = "test/tiny:second";
  (void)publish(other, fixture.status, test::any_set);
  other.name = "test/tiny";
  other.force = true;
  CHECK_FALSE(publish(other, fixture.status, test::any_set).entry.forced);  // replaced, but accepted
  CHECK(test::read_folder(fixture.zoo() / "test/tiny/latest") == test::sample_set("y", "accepted"));
  CHECK(fixture.index().document()["entries"].size() == 2);
}

TEST_CASE("a set that verify has accepted for no reader needs force, and the index says so") {
  PublishFixture fixture;
  for (const char* verdict : {"rejected", "not_measured", "Accepted", ""}) {
    PublishOptions options = fixture.options("x", verdict, std::string("test/tiny:v") + verdict);
    const bool known = std::string(verdict) == "not_measured" || std::string(verdict) == "rejected";
    const std::string why = std::string("for no reader: vllm ") + (known ? verdict : "not verified");
    CHECK_ERROR(publish(options, fixture.status, test::any_set), DataError, why);
    CHECK_FALSE(fs::exists(fixture.zoo() / "test"));
    options.force = true;
    CHECK(publish(options, fixture.status, test::any_set).entry.forced);
    CHECK(fixture.index().require(parse_set_name(options.name), "").forced);
    CHECK(fixture.status.warnings.back().find("published because of --force") != std::string::npos);
    fs::remove_all(fixture.zoo());
  }
}

TEST_CASE("what cannot be published is refused before anything is written") {
  PublishFixture fixture;
  PublishOptions options = fixture.options("x", "accepted");
  const auto with = [&](auto change) {
    PublishOptions changed = options;
    change(changed);
    return changed;
  };
  CHECK_ERROR(publish(with([](auto& o) { o.zoo = "ftp://host/zoo"; }), fixture.status, test::any_set), UsageError,
              "ftp:// are not supported");
  CHECK_ERROR(publish(with([](auto& o) { o.zoo = "https://host/zoo"; }), fixture.status, test::any_set), UsageError,
              "is not written to");
  CHECK_ERROR(publish(with([](auto& o) { o.name = "../x"; }), fixture.status, test::any_set), UsageError, "ORG/MODEL");
  CHECK_ERROR(
      publish(with([](auto& o) { o.name = "a/b@sha256:" + std::string(64, 'a'); }), fixture.status, test::any_set),
      UsageError, "tag");
  CHECK_ERROR(publish(with([](auto& o) { o.set = "/nowhere"; }), fixture.status, test::any_set), DataError,
              "no set with a manifest.json is here");
  CHECK_ERROR(publish(with([](auto& o) { o.sign = "/dev/null"; }), fixture.status, test::any_set), DataError, "device");
  Json manifest = test::sample_manifest("x");
  manifest["parts"]["rotations"].erase("codec");
  write_file(options.set / "manifest.json", manifest.dump());
  CHECK_ERROR(publish(options, fixture.status, test::any_set), DataError, "codec");
  CHECK_FALSE(fs::exists(fixture.zoo()));
}

TEST_CASE("a folder that is no set is never replaced, and a broken index is never overwritten") {
  PublishFixture fixture;
  const PublishOptions options = fixture.options("x", "accepted");
  write_file(fixture.zoo() / "test/tiny/latest/letter.txt", "dear");
  CHECK_ERROR(publish(options, fixture.status, test::any_set), UsageError, "not a set of oscar");
  fs::remove_all(fixture.zoo());
  write_file(fixture.zoo() / kIndexName, "{");
  CHECK_ERROR(publish(options, fixture.status, test::any_set), DataError, "index.json");
  CHECK(read_text(fixture.zoo() / kIndexName) == "{");
}

TEST_CASE("files that the manifest does not list stay at home") {
  PublishFixture fixture;
  const PublishOptions options = fixture.options("x", "accepted");
  write_file(options.set / "notes.txt", "mine");
  (void)publish(options, fixture.status, test::any_set);
  CHECK_FALSE(fs::exists(fixture.zoo() / "test/tiny/latest/notes.txt"));
}

}  // namespace oscar
