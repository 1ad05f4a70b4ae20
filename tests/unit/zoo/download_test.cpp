// SPDX-License-Identifier: MIT
#include "zoo/download.hpp"

#include <doctest/doctest.h>

#include <chrono>

#include "base/atomic_file.hpp"
#include "sample_set.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

constexpr TransferOptions kQuick{.timeout_seconds = 1, .retries = 2, .first_pause_seconds = 0.001};

struct Fixture {
  test::TemporaryFolder folder;
  test::FakeZoo zoo;
  test::RecordedStatus status;
  std::map<std::string, std::string> set = test::sample_set("x", "accepted");
  SetManifest manifest = parse_set_manifest(set.at("manifest.json"), "here");

  Fixture() { zoo.add("a", "b", set); }
  void fetch() {
    const auto transport = zoo.factory()({}, kQuick);
    fetch_set(*transport, "a/b", manifest, folder.path(), {kQuick}, status);
  }
};

constexpr char kKeys[] = "a/b/k_rotation_qqt_r_h_pbr.pt";

}  // namespace

TEST_CASE("a set arrives bit-identical, and progress ends at its size") {
  Fixture fixture;
  fixture.fetch();
  CHECK(test::read_folder(fixture.folder.path()) == fixture.set);
  CHECK(fixture.status.steps.back() + std::int64_t(fixture.manifest.text.size()) ==
        std::int64_t(fixture.manifest.total_size));
}

TEST_CASE("a lasting failure is not tried again") {
  Fixture fixture;
  fixture.zoo.files.erase(kKeys);
  fixture.zoo.asked.clear();
  CHECK_ERROR(fixture.fetch(), TransportError, "HTTP 404");
  CHECK(fixture.zoo.asked.size() == 1);
}

TEST_CASE("the server decides how long to wait, within bounds") {
  test::RecordedStatus status;
  int attempts = 0;
  const auto begin = std::chrono::steady_clock::now();
  with_retries(kQuick, status, [&] {
    TransientError busy("HTTP 429", "x", "");
    busy.retry_after_seconds = 0.2;
    if (++attempts == 1) throw busy;
  });
  CHECK(attempts == 2);
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(200));
}

TEST_CASE("a file that is shorter, longer or different is refused, and no more is written than announced") {
  Fixture fixture;
  std::string& keys = fixture.zoo.files[kKeys];
  const std::string good = keys;

  keys.resize(good.size() - 1);
  CHECK_ERROR(fixture.fetch(), TransportError, "only 5000 of 5001 bytes");
  keys = good + "x";
  CHECK_ERROR(fixture.fetch(), TransportError, "more than the 5001 bytes");
  CHECK(file_size(fixture.folder / "k_rotation_qqt_r_h_pbr.pt") <= good.size());
  keys = std::string(good.size() + 100000, 'x');
  CHECK_ERROR(fixture.fetch(), TransportError, "more than the 5001 bytes");
  CHECK(file_size(fixture.folder / "k_rotation_qqt_r_h_pbr.pt") <= good.size());
  keys = good;
  keys[7] = 'X';
  CHECK_ERROR(fixture.fetch(), TransportError, "sha256 differs");
  keys = good;
  fixture.fetch();
}

TEST_CASE("a document is read up to its limit only") {
  Fixture fixture;
  const auto transport = fixture.zoo.factory()({}, kQuick);
  CHECK(fetch_text(*transport, kKeys, {0, 5001}, kQuick, fixture.status).size() == 5001);
  CHECK_ERROR(fetch_text(*transport, kKeys, {0, 5000}, kQuick, fixture.status), TransportError,
              "more than the 5000 bytes");
  CHECK_ERROR(fetch_text(*transport, kKeys, {5002, 6000}, kQuick, fixture.status), TransportError,
              "only 5001 of 5002 bytes came (tried 3 times)");
}

}  // namespace oscar
