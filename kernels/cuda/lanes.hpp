// SPDX-License-Identifier: MIT
// Verbs of several threads on one GPU: each takes a lane, a Context, and gives it back when its work is done.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/cuda/context.hpp"

namespace oscar::cuda {

class Lanes {
 public:
  Lanes(Device& device, Ingest& ingest, int count) : device_(device), ingest_(ingest), not_made_(count) {}

  /// Returns what task(context) returns, once its work on the GPU is done. Waits while all lanes are taken. A task that
  /// runs out of memory starts again with smaller chunks: until it succeeds it must leave what it was given unchanged.
  template <class Task>
  auto run(const Task& task) {
    while (true) {
      const std::size_t chunk_bytes = device_.chunk_bytes();
      try {
        const Turn turn(*this);
        if constexpr (std::is_void_v<decltype(task(turn.context()))>) {
          task(turn.context());
          return turn.context().synchronize();
        } else {
          auto result = task(turn.context());
          turn.context().synchronize();
          return result;
        }
      } catch (const OutOfMemory& error) {
        device_.work_in_smaller_chunks(chunk_bytes, error);
      }
    }
  }

 private:
  /// A lane while a verb has it. What went wrong in it is over when the next one gets it.
  class Turn {
   public:
    explicit Turn(Lanes& lanes) : lanes_(lanes), context_(lanes.take()) {}
    ~Turn() {
      (void)cudaStreamSynchronize(context_->stream());
      lanes_.give_back(std::move(context_));
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    [[nodiscard]] const Context& context() const { return *context_; }

   private:
    Lanes& lanes_;
    std::unique_ptr<Context> context_;
  };

  [[nodiscard]] std::unique_ptr<Context> take();
  void give_back(std::unique_ptr<Context> context);

  Device& device_;
  Ingest& ingest_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::unique_ptr<Context>> idle_;
  int not_made_;
};

}  // namespace oscar::cuda
