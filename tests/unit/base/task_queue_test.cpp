// SPDX-License-Identifier: MIT
#include "base/task_queue.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <vector>

namespace oscar {

TEST_CASE("tasks run in order while others are added, and finish() waits for the last") {
  std::vector<int> done;
  std::promise<void> go;
  TaskQueue queue;
  queue.add([&] { go.get_future().wait(); });
  for (int i = 0; i < 100; ++i) queue.add([&done, i] { done.push_back(i); });
  CHECK(done.empty());
  go.set_value();
  queue.finish();
  REQUIRE(done.size() == 100);
  for (int i = 0; i < 100; ++i) CHECK(done[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("what a task throws ends the queue, and whoever waits for it or adds to it hears of it") {
  std::atomic<bool> later = false;
  TaskQueue queue;
  std::promise<void> go;
  queue.add([&] {
    go.get_future().wait();
    throw std::runtime_error("the third is missing");
  });
  queue.add([&] { later = true; });
  go.set_value();
  CHECK_THROWS_WITH(queue.finish(), "the third is missing");
  CHECK_THROWS_WITH(queue.add([] {}), "the third is missing");
  CHECK_THROWS_WITH(queue.finish(), "the third is missing");
  CHECK_FALSE(later);
}

TEST_CASE("a queue that goes waits for the task that runs and drops the others") {
  std::atomic<bool> first = false, second = false;
  std::promise<void> begun, go;
  std::future<void> ending;
  {
    TaskQueue queue;
    queue.add([&] {
      begun.set_value();
      go.get_future().wait();
      first = true;
    });
    queue.add([&] { second = true; });
    begun.get_future().wait();
    ending = std::async(std::launch::async, [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      go.set_value();
    });
  }
  CHECK(first);
  CHECK_FALSE(second);
}

}  // namespace oscar
