// SPDX-License-Identifier: MIT
#include "kernels/cuda/lanes.hpp"

#include <utility>

namespace oscar::cuda {

std::unique_ptr<Context> Lanes::take() {
  device_.activate();
  std::unique_lock lock(mutex_);
  returned_.wait(lock, [&] { return !idle_.empty() || not_made_ > 0; });
  if (!idle_.empty()) {
    std::unique_ptr<Context> context = std::move(idle_.back());
    idle_.pop_back();
    return context;
  }
  auto context = std::make_unique<Context>(device_, ingest_);
  --not_made_;
  return context;
}

void Lanes::give_back(std::unique_ptr<Context> context) {
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(context));
  }
  returned_.notify_one();
}

}  // namespace oscar::cuda
