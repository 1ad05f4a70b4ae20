// SPDX-License-Identifier: MIT
// Fork-join over independent tasks. Results never depend on the number of threads: callers give each task its own
// output and combine the outputs in task order. Non-goals: nested parallelism, futures, work stealing.
#pragma once

#include <cstddef>
#include <functional>

namespace oscar {

/// Threads that parallel_for uses from now on; 0 = one per core that this process may use. Set once, by main or a test.
void set_num_threads(int count);
[[nodiscard]] int num_threads();
/// Returns how many processor cores this process may run on: a container or taskset can have bound it to some.
[[nodiscard]] int usable_cores();

/// Runs task(0) … task(count - 1), each once, on up to num_threads() threads, or `max_threads` if that is not 0; the
/// first exception is rethrown after all threads have stopped. A call from inside a task runs in that task's thread.
void parallel_for(std::size_t count, const std::function<void(std::size_t)>& task, int max_threads = 0);

}  // namespace oscar
