// SPDX-License-Identifier: MIT
// What was made of layers: in memory, or in a folder where a later process finds it.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/threads.hpp"
#include "work/partial_folder.hpp"

namespace oscar {

template <class Made>
class KeptLayers {
 public:
  /// Both throw DataError for a file that is missing or damaged, IoError for one that cannot be written.
  using Write = std::function<void(const std::filesystem::path&, const Made&)>;
  using Read = std::function<Made(const std::filesystem::path&, int layer_id)>;

  /// folder: null for memory.
  KeptLayers(const PartialFolder* folder, Write write, Read read)
      : folder_(folder), write_(std::move(write)), read_(std::move(read)) {}

  /// Returns those of the layers that are not in the folder yet.
  [[nodiscard]] std::vector<int> missing(std::span<const int> ids) const {
    std::vector<int> missing(ids.begin(), ids.end());
    if (folder_ != nullptr) std::erase_if(missing, [&](int id) { return folder_->has(id); });
    return missing;
  }

  /// Keeps a layer; called from any thread, once for each layer.
  void add(int layer_id, Made made) {
    if (folder_ != nullptr) return write_(folder_->file_of(layer_id), made);
    const std::lock_guard lock(mutex_);
    made_.emplace(layer_id, std::move(made));
  }

  /// Gives layers away in the order of `ids`, or reads them from the folder.
  [[nodiscard]] std::vector<Made> take(std::span<const int> ids) {
    std::vector<Made> all(ids.size());
    parallel_for(ids.size(), [&](std::size_t i) {
      all[i] = folder_ != nullptr ? read_(folder_->file_of(ids[i]), ids[i]) : std::move(made_.at(ids[i]));
    });
    return all;
  }

 private:
  const PartialFolder* folder_;
  Write write_;
  Read read_;
  std::mutex mutex_;
  std::map<int, Made> made_;
};

}  // namespace oscar
