// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/status.hpp"
#include "dump/source.hpp"
#include "support/memory_source.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

test::MemorySource make_source() {
  std::map<int, std::vector<test::MemoryChunk>> layers;
  for (const int id : {0, 2, 5}) layers[id];
  return test::MemorySource(std::move(layers));
}

}  // namespace

TEST_CASE("a task that fails ends the others, which wait, and its error is the one thrown") {
  for (const std::size_t failing : {0, 1}) {
    CAPTURE(failing);
    test::MemorySource source = make_source();
    std::atomic<int> waiting = 0, interrupted = 0, begun = 0;
    const auto task = [&](std::size_t i, const std::unique_ptr<LayerStream>&) {
      ++begun;
      if (i == failing) {
        while (waiting == 0) std::this_thread::yield();
        throw DataError("broken", "here", "");
      }
      ++waiting;
      try {
        for (int waited = 0; waited < 20000; ++waited) {
          throw_if_interrupted();
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      } catch (const Interrupted&) {
        ++interrupted;
        throw;
      }
    };
    CHECK_ERROR(for_each_layer(source, source.layer_ids(), 2, task), DataError, "broken");
    CHECK(interrupted == 1);
    CHECK(begun == 2);
    CHECK_NOTHROW(throw_if_interrupted());
  }
}

TEST_CASE("where no more threads are to be had, those that run do all layers") {
  test::MemorySource source = make_source();
  pthread_attr_t usual{}, impossible{};
  REQUIRE(pthread_getattr_default_np(&usual) == 0);
  REQUIRE(pthread_attr_init(&impossible) == 0);
  REQUIRE(pthread_attr_setstacksize(&impossible, std::size_t{1} << 47) == 0);  // no address space has room for it
  REQUIRE(pthread_setattr_default_np(&impossible) == 0);
  std::atomic<int> done = 0;
  CHECK_NOTHROW(for_each_layer(source, source.layer_ids(), 2, [&](std::size_t, const auto&) { ++done; }));
  CHECK(pthread_setattr_default_np(&usual) == 0);
  CHECK(done == 3);
}

}  // namespace oscar
