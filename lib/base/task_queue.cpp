// SPDX-License-Identifier: MIT
#include "base/task_queue.hpp"

#include "base/wait.hpp"

namespace oscar {

TaskQueue::TaskQueue() : thread_([this] { work(); }) {}

TaskQueue::~TaskQueue() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void TaskQueue::rethrow() const {
  if (error_) std::rethrow_exception(error_);
}

void TaskQueue::add(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  rethrow();
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

void TaskQueue::finish() {
  wait_until([this] {
    const std::lock_guard lock(mutex_);
    rethrow();
    return tasks_.empty();
  });
}

void TaskQueue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ended_ || !tasks_.empty(); });
    if (ended_) return;
    const std::function<void()> task = std::move(tasks_.front());
    lock.unlock();
    std::exception_ptr error;
    try {
      task();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    tasks_.pop_front();
    if (!error) continue;
    error_ = error;
    return;
  }
}

}  // namespace oscar
