// SPDX-License-Identifier: MIT
#include "model/run/expert_loader.hpp"

#include <algorithm>

namespace oscar {

ExpertLoader::ExpertLoader(const Decoder& decoder, int layer, std::vector<int> experts, std::size_t ahead)
    : decoder_(decoder), layer_(layer), experts_(std::move(experts)), ahead_(ahead) {
  const auto step = static_cast<std::size_t>(decoder.experts_at_once(layer));
  for (std::size_t first = 0; first < experts_.size(); first += step) {
    groups_.push_back({std::span(experts_).subspan(first, std::min(step, experts_.size() - first)), {}});
  }
  thread_ = std::thread([this] { load(); });
}

ExpertLoader::~ExpertLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ExpertLoader::load() try {
  while (true) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stop_ || loaded_ == groups_.size() || loaded_ < released_ + ahead_; });
    if (stop_ || loaded_ == groups_.size()) return;
    Group& group = groups_[loaded_];
    lock.unlock();
    group.weights = decoder_.load_experts(layer_, group.experts);
    lock.lock();
    ++loaded_;
    changed_.notify_all();
  }
} catch (...) {
  const std::lock_guard lock(mutex_);
  error_ = std::current_exception();
  changed_.notify_all();
}

const ExpertLoader::Group& ExpertLoader::at(std::size_t i) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return error_ || i < loaded_; });
  if (i >= loaded_) std::rethrow_exception(error_);
  return groups_[i];
}

void ExpertLoader::release(std::size_t count) {
  {
    const std::lock_guard lock(mutex_);
    for (; released_ < count; ++released_) groups_[released_].weights.clear();
  }
  changed_.notify_all();
}

}  // namespace oscar
