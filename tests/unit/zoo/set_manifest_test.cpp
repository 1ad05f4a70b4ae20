// SPDX-License-Identifier: MIT
#include "zoo/set_manifest.hpp"

#include <doctest/doctest.h>

#include "base/atomic_file.hpp"
#include "base/sha256.hpp"
#include "sample_set.hpp"
#include "set/verdict.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

SetManifest parse(const Json& document) { return parse_set_manifest(document.dump(), "here"); }

Json with_paths(std::initializer_list<std::string> paths) {
  Json manifest = test::sample_manifest("x");
  manifest["files"] = Json::array();
  for (const std::string& path : paths) {
    manifest["files"].push_back({{"path", path}, {"sha256", std::string(64, '0')}, {"size", 1}});
  }
  return manifest;
}

}  // namespace

TEST_CASE("a manifest is named by its bytes and knows the size of its set") {
  const auto files = test::sample_set("x", "accepted");
  const SetManifest manifest = parse_set_manifest(files.at("manifest.json"), "here");
  std::uint64_t total = 0;
  for (const auto& [path, content] : files) total += content.size();
  CHECK(manifest.sha256 == sha256_hex(files.at("manifest.json")));
  CHECK(manifest.total_size == total);
  CHECK(manifest.files.size() == 3);
  CHECK(recorded_verdict(manifest.document) == Verdict::kAccepted);
}

TEST_CASE("a verdict is one of three words, whatever a manifest says") {
  CHECK(recorded_verdict(test::sample_manifest("x")) == std::nullopt);
  for (const Verdict verdict : {Verdict::kAccepted, Verdict::kRejected, Verdict::kNotMeasured}) {
    CHECK(recorded_verdict({{"verification", {{"verdict", name_of(verdict)}}}}) == verdict);
  }
  for (const Json& other : {Json("Accepted"), Json("accepted by all"), Json(true), Json({"accepted"}), Json()}) {
    CHECK(recorded_verdict({{"verification", {{"verdict", other}}}}) == std::nullopt);
  }
  CHECK(recorded_verdict(Json::array()) == std::nullopt);
  CHECK(claim_of(Verdict::kAccepted) == "accepted by its maker's verify");
  CHECK(claim_of({}) == "not verified");
}

TEST_CASE("each reader that is known has its part and its verdict, whatever a manifest says") {
  Json manifest = parse_json(test::sample_set("x", "rejected").at("manifest.json"), "here");
  CHECK(recorded_verdict(manifest, "vllm") == Verdict::kRejected);
  CHECK(recorded_verdict(manifest, "llamacpp") == std::nullopt);
  CHECK(verdicts_text(readers_of(manifest)) == "vllm rejected, llamacpp not verified");
  CHECK_FALSE(any_accepted(readers_of(manifest)));
  manifest["verification"]["readers"]["llamacpp"] = {{"part", "rotations"}, {"verdict", "accepted"}};
  CHECK(any_accepted(readers_of(manifest)));
  manifest["readers"] = {{"vllm", 7}, {"evil", "rotations"}};
  CHECK(readers_of(manifest) == Json::object());
  for (const Json& odd : {Json(), Json::array({1}), Json{{"readers", "vllm"}}}) CHECK(readers_of(odd).empty());
}

TEST_CASE("a file list can name only files inside the set") {
  for (const char* bad : {"../x", "/etc/passwd", "a/../../x", "", ".", "a//b", "a\\b", "a\nb", "manifest.json"}) {
    CHECK_ERROR(parse(with_paths({bad})), DataError, "unsafe path");
  }
  CHECK_ERROR(parse(with_paths({"a", "a"})), DataError, "twice");
  CHECK_ERROR(parse(with_paths({"a", "a/b"})), DataError, "as a file and as a folder");
  CHECK_ERROR(parse(with_paths({"manifest.json/x"})), DataError, "manifest.json as a file and as a folder");
  CHECK(parse(with_paths({"a/b", "a/c"})).files.size() == 2);
}

TEST_CASE("what is not a manifest of a set is refused with its place") {
  CHECK_ERROR(parse_set_manifest("<html>", "here"), DataError, "here");
  CHECK_ERROR(parse_set_manifest("[1]", "here"), DataError, "not a document of schema oscar.set.v1");
  CHECK_ERROR(parse_set_manifest(R"({"schema":"oscar.dump.v1","files":[]})", "here"), DataError,
              "not a document of schema oscar.set.v1");
  CHECK_ERROR(parse(with_paths({})), DataError, "no files");
  CHECK_ERROR(parse_set_manifest(std::string(1000000, '['), "here"), DataError, "nested too deeply");
  for (const Json& size : {Json(-1), Json(1.5), Json("1"), Json(nullptr)}) {
    Json manifest = with_paths({"a"});
    manifest["files"][0]["size"] = size;
    CHECK_THROWS_AS((void)parse(manifest), DataError);
  }
  Json huge = with_paths({"a", "b"});
  huge["files"][0]["size"] = huge["files"][1]["size"] = std::uint64_t{1} << 62;
  CHECK_ERROR(parse(huge), DataError, "impossible");
  Json hash = with_paths({"a"});
  hash["files"][0]["sha256"] = std::string(64, 'A');
  CHECK_ERROR(parse(hash), DataError, "[files][0][sha256]");
}

TEST_CASE("a set on disk is found only if it is whole") {
  const test::TemporaryFolder folder;
  const auto files = test::sample_set("x", "accepted");
  test::write_set(folder / "set", files);
  const std::string hash = sha256_hex(files.at("manifest.json"));

  CHECK(find_set(folder / "set", hash));
  CHECK_FALSE(find_set(folder / "set", std::string(64, '0')));
  CHECK_FALSE(find_set(folder / "nothing", hash));
  write_file(folder / "set/tables/clip.json", "[]\n");  // the same size
  CHECK_FALSE(find_set(folder / "set", hash));
  std::filesystem::remove(folder / "set/tables/clip.json");
  CHECK_FALSE(find_set(folder / "set", hash));
}

}  // namespace oscar
