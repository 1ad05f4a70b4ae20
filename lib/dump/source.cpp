// SPDX-License-Identifier: MIT
#include "dump/source.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <mutex>

#include "base/status.hpp"

namespace oscar {

void for_each_layer(QkvSource& source, std::span<const int> ids, int lanes,
                    const std::function<void(std::size_t, std::unique_ptr<LayerStream>)>& task) {
  std::mutex mutex;
  std::size_t next = 0;
  const auto work = [&] {
    while (true) {
      std::unique_lock lock(mutex);
      if (next == ids.size()) return;
      const std::size_t i = next++;
      std::unique_ptr<LayerStream> stream = source.open(ids[i]);
      lock.unlock();
      throw_if_interrupted();
      task(i, std::move(stream));
    }
  };
  std::atomic<bool> stop = false;
  std::exception_ptr failure;  // the first: that others were interrupted follows from it
  const auto stop_others = [&] {
    const StopScope scope(stop);
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex);
      next = ids.size();
      if (failure == nullptr) failure = std::current_exception();
      stop = true;
    }
  };
  std::vector<std::future<void>> others;
  for (int lane = 1; lane < std::min<int>(lanes, static_cast<int>(ids.size())); ++lane)
    others.push_back(std::async(std::launch::async, stop_others));
  stop_others();
  for (std::future<void>& other : others) other.get();
  if (failure != nullptr) std::rethrow_exception(failure);
}

std::vector<std::int64_t> sequence_lengths(LayerStream& stream) {
  std::vector<std::int64_t> lengths;
  QkvChunk chunk;
  stream.rewind();
  while (stream.skip(chunk)) {
    for (const SequenceRange& range : chunk.sequences) lengths.push_back(range.size());
  }
  return lengths;
}

}  // namespace oscar
