// SPDX-License-Identifier: MIT
#include "base/threads.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/errors.hpp"

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
  try {
    for (std::size_t i = 1; i < workers; ++i) threads.emplace_back(work);
  } catch (const std::system_error&) {  // no more threads are to be had: those that run do the work
  }
  work();
  for (std::thread& thread : threads) thread.join();
  if (first_error) std::rethrow_exception(first_error);
}

namespace {

[[noreturn]] void run_and_exit(const std::function<void()>& task, unsigned seconds) {
  const rlimit no_core{0, 0};
  (void)::setrlimit(RLIMIT_CORE, &no_core);
  for (const int each : {SIGALRM, SIGSEGV, SIGBUS, SIGABRT}) (void)std::signal(each, SIG_DFL);
  (void)::alarm(seconds);
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere >= 0) (void)::dup2(nowhere, STDOUT_FILENO), (void)::dup2(nowhere, STDERR_FILENO);
  try {
    task();
  } catch (...) {
  }
  ::_exit(0);  // nothing of the parent's is closed or written twice
}

}  // namespace

bool survives(const std::function<void()>& task, unsigned seconds) {
  const pid_t child = ::fork();
  if (child < 0) throw IoError("cannot start a process to try a file in", "fork", "end other programs, then run again");
  if (child == 0) run_and_exit(task, seconds);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace oscar
