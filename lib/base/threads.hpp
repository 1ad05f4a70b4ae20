// SPDX-License-Identifier: MIT
// Work beside other work. Fork-join over independent tasks: results never depend on the number of threads, since
// callers give each task its own output and combine the outputs in task order. Non-goals: nested parallelism, work
// stealing.
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

/// Tries work that may take its process down: whether a copy of this process gets through `task` within so many
/// seconds. Exceptions count as getting through: the caller will see them too. The task may not wait for other threads,
/// which the copy does not have; what it prints is lost. Throws IoError if there can be no other process.
[[nodiscard]] bool survives(const std::function<void()>& task, unsigned seconds);

}  // namespace oscar
