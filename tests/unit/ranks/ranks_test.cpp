// SPDX-License-Identifier: MIT
// Two ranks as threads of one process; what happens when a process dies is tested by tests/cli/cluster.
#include "ranks/ranks.hpp"

#include <doctest/doctest.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <mutex>

#include "base/cores.hpp"
#include "base/status.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

/// A port that other tests at the same time hardly have, below those that systems give to connections.
Place place_of(int rank, int size) {
  return {.rank = rank, .size = size, .host = "127.0.0.1", .port = 20000 + static_cast<int>(::getpid() % 10000)};
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
  const std::string large = std::string(9 << 20, 'b') + std::string(4 << 20, 'c');  // the store takes 8 MiB at a time
  ranks.put("b", large);
  CHECK(other.get() == large);
  ranks.put("b/0", "not a piece of b");
  CHECK(ranks.get("b").size() == large.size());
  ranks.put("nothing", "");
  CHECK(ranks.take("nothing").empty());
  CHECK(ranks.sharers_of_cores() == 2);
  ranks.leave();
}

TEST_CASE("ranks that a launcher bound to different cores share none") {
  const Cores all = usable_cores();
  if (all.count < 2) return test::skip_case("this machine has one core");
  auto other = std::async(std::launch::async, [&] {
    cpu_set_t last;
    CPU_ZERO(&last);
    CPU_SET(std::stoi(all.list.substr(all.list.find_last_of(",-") + 1)), &last);
    REQUIRE(::sched_setaffinity(0, sizeof last, &last) == 0);
    Ranks ranks(place_of(1, 2), {});
    const int sharers = ranks.sharers_of_cores();
    ranks.leave();
    return sharers;
  });
  Ranks ranks(place_of(0, 2), {});
  CHECK(ranks.sharers_of_cores() == 1);
  CHECK(other.get() == 1);
  ranks.leave();
}

TEST_CASE("a rank that gives up before all have met is named with its reason at once") {
  const auto start = std::chrono::steady_clock::now();
  auto other = std::async(std::launch::async, [] {
    CHECK_ERROR(Ranks(place_of(1, 3), {.join_seconds = 1}), RankFailed, "rank 2 did not come");
  });
  CHECK_ERROR(Ranks(place_of(0, 3), {}), RankFailed, "failed: rank 2 did not come");
  other.get();
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("a rank that does not come is named") {
  const auto start = std::chrono::steady_clock::now();
  CHECK_ERROR(Ranks(place_of(0, 3), {.join_seconds = 0.2}), RankFailed, "rank 1 did not come");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

// Last, since it interrupts this process for good.
TEST_CASE("a rank that is interrupted and then hangs is ended") {
  std::promise<void> met, ended;
  auto other = std::async(std::launch::async, [&] {
    Ranks ranks(place_of(1, 2), {});
    CHECK(ranks.name(0).starts_with("rank 0 ("));
    met.set_value();
    ended.get_future().wait();
  });
  std::promise<std::string> given_up;
  std::once_flag once;
  Ranks ranks(place_of(0, 2), {.give_up = [&](const RankFailed& error) {
                std::call_once(once, [&] { given_up.set_value(error.what()); });
              }});
  met.get_future().wait();
  const auto start = std::chrono::steady_clock::now();
  interrupt(RankFailed("the disk is full", "", ""));
  auto text = given_up.get_future();
  REQUIRE(text.wait_for(std::chrono::seconds(15)) == std::future_status::ready);
  CHECK(text.get() == "the disk is full");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(15));
  ended.set_value();
  other.get();
}

}  // namespace oscar
