// SPDX-License-Identifier: MIT
#include "fit/layer_lanes.hpp"

#include <memory>
#include <mutex>

#include "base/status.hpp"
#include "base/threads.hpp"

namespace oscar {

void for_each_layer(QkvSource& source, std::span<const int> ids, int lanes,
                    const std::function<void(std::size_t, LayerStream&)>& task) {
  std::mutex mutex;
  std::size_t next = 0;
  const auto work = [&](std::size_t) {
    while (true) {
      std::unique_lock lock(mutex);
      if (next == ids.size()) return;
      const std::size_t i = next++;
      const std::unique_ptr<LayerStream> stream = source.open(ids[i]);
      lock.unlock();
      throw_if_interrupted();
      task(i, *stream);
    }
  };
  const auto stop_others = [&](std::size_t lane) {
    try {
      work(lane);
    } catch (...) {
      const std::lock_guard lock(mutex);
      next = ids.size();
      throw;
    }
  };
  parallel_for(static_cast<std::size_t>(lanes), stop_others, lanes);
}

}  // namespace oscar
