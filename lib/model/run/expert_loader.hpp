// SPDX-License-Identifier: MIT
// The experts of one layer, loaded group by group by a thread of its own, ahead of who needs them.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "model/run/decoder.hpp"

namespace oscar {

class ExpertLoader {
 public:
  struct Group {
    std::span<const int> experts;
    std::vector<std::unique_ptr<LoadedWeights>> weights;  // by expert
  };

  /// experts: ascending. ahead: groups at most that are loaded and not yet released. One loader loads at a time: what
  /// one frees, another may not overwrite too early.
  ExpertLoader(const Decoder& decoder, int layer, std::vector<int> experts, std::size_t ahead);
  ~ExpertLoader();
  ExpertLoader(const ExpertLoader&) = delete;
  ExpertLoader& operator=(const ExpertLoader&) = delete;

  [[nodiscard]] std::size_t groups() const { return groups_.size(); }
  /// Waits for group number i. Throws what loading throws.
  [[nodiscard]] const Group& at(std::size_t i);
  /// Says that the first so many groups are not needed any more.
  void release(std::size_t count);

 private:
  void load();

  const Decoder& decoder_;
  int layer_;
  std::vector<int> experts_;
  std::vector<Group> groups_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t ahead_, loaded_ = 0, released_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last, since it uses the others
};

}  // namespace oscar
