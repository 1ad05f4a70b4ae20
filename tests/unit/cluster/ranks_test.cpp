// SPDX-License-Identifier: MIT
// Two ranks as threads of one process; what happens when a process dies is tested by tests/cli/cluster.
#include "cluster/ranks.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <future>

#include "support/support.hpp"

namespace oscar {
namespace {

/// A port that other tests at the same time hardly have.
Place place_of(int rank, int size) {
  return {.rank = rank, .size = size, .host = "127.0.0.1", .port = 30000 + static_cast<int>(::getpid() % 20000)};
}

}  // namespace

TEST_CASE("what one rank puts the other gets, and takes once") {
  auto other = std::async(std::launch::async, [] {
    Ranks ranks(place_of(1, 2), {});
    ranks.put("a", "apple");
    const std::string got = ranks.get("b");
    ranks.leave();
    return got;
  });
  Ranks ranks(place_of(0, 2), {});
  CHECK(ranks.take("a") == "apple");
  ranks.put("a", "another");
  CHECK(ranks.get("a") == "another");
  ranks.put("b", std::string(1 << 20, 'b'));
  CHECK(other.get() == std::string(1 << 20, 'b'));
  ranks.leave();
}

TEST_CASE("a rank that does not come is named") {
  const auto start = std::chrono::steady_clock::now();
  CHECK_ERROR(Ranks(place_of(0, 3), {.join_seconds = 0.2}), RankFailed, "rank 1 did not come");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

}  // namespace oscar
