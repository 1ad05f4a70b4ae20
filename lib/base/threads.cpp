// SPDX-License-Identifier: MIT
#include "base/threads.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace oscar {
namespace {

std::atomic<int> configured_threads{0};
thread_local bool inside_task = false;

/// Cores of a machine, at most.
constexpr int kMostCores = 1 << 16;

struct FreeSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

}  // namespace

// std::thread::hardware_concurrency counts the machine's cores with some C libraries (glibc 2.36), and ours with
// others.
int usable_cores() {
  const std::unique_ptr<cpu_set_t, FreeSet> set(CPU_ALLOC(kMostCores));
  const std::size_t size = CPU_ALLOC_SIZE(kMostCores);
  if (set == nullptr || ::sched_getaffinity(0, size, set.get()) != 0) {
    return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  }
  return CPU_COUNT_S(size, set.get());
}

void set_num_threads(int count) { configured_threads = std::max(count, 0); }

int num_threads() {
  const int count = configured_threads;
  static const int cores = usable_cores();
  return count > 0 ? count : cores;
}

void parallel_for(std::size_t count, const std::function<void(std::size_t)>& task, int max_threads) {
  const auto limit = static_cast<std::size_t>(max_threads > 0 ? max_threads : num_threads());
  const std::size_t workers = inside_task ? 1 : std::min(count, limit);
  if (workers <= 1) {
    for (std::size_t i = 0; i < count; ++i) task(i);
    return;
  }
  std::atomic<std::size_t> next{0};
  std::exception_ptr first_error;  // in task order, whoever is faster: tasks before one that fails have begun
  std::size_t first_failed = count;
  std::mutex error_mutex;
  const auto work = [&] {
    inside_task = true;
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        task(i);
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (i < first_failed) first_failed = i, first_error = std::current_exception();
        next = count;
      }
    }
    inside_task = false;
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < workers; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace oscar
