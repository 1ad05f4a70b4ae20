// SPDX-License-Identifier: MIT
// Tasks that run one after another in a thread of their own.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace oscar {

class TaskQueue {
 public:
  TaskQueue();
  /// Waits for the task that runs; those that have not begun are dropped.
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  /// Throws what an earlier task threw; none runs after that one.
  void add(std::function<void()> task);
  /// Waits until all have run. Throws what one threw, and what throw_if_interrupted() throws.
  void finish();

 private:
  void work();
  void rethrow() const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // the first one runs
  std::exception_ptr error_;
  bool ended_ = false;
  std::thread thread_;  // last, since it uses the others
};

}  // namespace oscar
