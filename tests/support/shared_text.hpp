// SPDX-License-Identifier: MIT
// A text that several processes share, as threads: what they show each other, and sources of which each has some
// chunks.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/wait.hpp"
#include "support/memory_source.hpp"

namespace oscar::test {

class Board {
 public:
  void put(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    REQUIRE(values_.emplace(key, value).second);
  }
  std::string take(const std::string& key) {
    std::string value;
    const auto find = [&] {
      const std::lock_guard lock(mutex_);
      const auto found = values_.find(key);
      if (found == values_.end()) return false;
      value = std::move(found->second);
      values_.erase(found);
      return true;
    };
    REQUIRE(wait_until(find, 30));
    return value;
  }
  [[nodiscard]] std::size_t left() const { return values_.size(); }
  [[nodiscard]] TextShare share(int rank, int size) {
    return {.rank = rank,
            .size = size,
            .put = [this](const std::string& key, const std::string& value) { put(key, value); },
            .take = [this](const std::string& key) { return take(key); },
            .choose = {}};
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

/// Chunks of other processes have no rows.
class SharedStream : public MemoryStream {
 public:
  SharedStream(const std::vector<MemoryChunk>& chunks, ChunkRange own, SharedLayer shared)
      : MemoryStream(chunks), own_(own), shared_(shared) {}
  bool next(QkvChunk& out) override {
    if (!MemoryStream::next(out)) return false;
    out.here = own_.contains(next_++);
    if (out.here) return true;
    for (HeadsView* side : {&out.view.q, &out.view.k, &out.view.v}) side->data = nullptr;
    return true;
  }
  void rewind() override {
    MemoryStream::rewind();
    next_ = 0;
  }
  SharedLayer* shared() override { return &shared_; }

 private:
  ChunkRange own_;
  SharedLayer shared_;
  std::size_t next_ = 0;
};

/// All layers have the same chunks, of which this process has `own`.
class SharedSource : public MemorySource {
 public:
  SharedSource(std::map<int, std::vector<MemoryChunk>> layers, ChunkRange own, TextShare share)
      : MemorySource(layers), chunks_(std::move(layers)), own_(own), share_(std::move(share)) {}
  [[nodiscard]] std::unique_ptr<LayerStream> open(int id) override {
    return std::make_unique<SharedStream>(chunks_.at(id), own_, SharedLayer(share_, id, fitter_of(id)));
  }
  [[nodiscard]] bool fits(int id) const override { return fitter_of(id) == share_.rank; }

 private:
  [[nodiscard]] int fitter_of(int id) const {
    return static_cast<int>(std::ranges::lower_bound(layer_ids(), id) - layer_ids().begin()) % share_.size;
  }

  std::map<int, std::vector<MemoryChunk>> chunks_;
  ChunkRange own_;
  TextShare share_;
};

/// task(rank) for each process, at the same time. Throws what the first of them throws.
template <class Task>
void on_ranks(int size, const Task& task) {
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::async(std::launch::async, task, rank));
  for (std::future<void>& rank : ranks) rank.get();
}

}  // namespace oscar::test
