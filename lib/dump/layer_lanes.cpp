// SPDX-License-Identifier: MIT
#include "dump/layer_lanes.hpp"

#include <future>
#include <mutex>
#include <vector>

#include "base/status.hpp"

namespace oscar {

void for_each_layer(QkvSource& source, std::span<const int> ids, int lanes,
                    const std::function<void(std::size_t, std::unique_ptr<LayerStream>)>& task) {
  source.expect(ids);
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
  const auto stop_others = [&] {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex);
      next = ids.size();
      throw;
    }
  };
  std::vector<std::future<void>> others;
  for (int lane = 1; lane < lanes; ++lane) others.push_back(std::async(std::launch::async, stop_others));
  stop_others();
  for (std::future<void>& other : others) other.get();
}

}  // namespace oscar
