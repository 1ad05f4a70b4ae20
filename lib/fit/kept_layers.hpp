// SPDX-License-Identifier: MIT
// What was made of layers, until the whole is written: in memory, or in a folder, one file each, which work that ends
// early leaves to the next; and the one way to take layers of a source and keep them. What a layer's file holds is its
// user's business.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.hpp"
#include "base/status.hpp"
#include "base/threads.hpp"
#include "dump/source.hpp"

namespace oscar {

/// Each file is whole or absent, and has checksums (tensor/safetensors.hpp); all of them are of one piece of work,
/// which the folder names.
class PartialFolder {
 public:
  /// What to do with a folder that is there already: use its layers, which must be of this work, or begin again.
  enum class Earlier { kUse, kReplace };

  /// Member of `of` with a fingerprint for each layer, which only layers that are there already must share: another may
  /// have been mended since.
  static constexpr const char* kDataOfLayers = "data_of_layers";

  /// `of`: all that decides the result. Earlier layers that are to be used but damaged are removed, and `status` hears
  /// of it. Throws DataError if they are of other work, or if the folder holds something else.
  PartialFolder(std::filesystem::path folder, const Json& of, Earlier earlier, Status* status = nullptr);
  /// Whether layers of this work are there already.
  [[nodiscard]] static bool is_of(const std::filesystem::path& folder, const Json& of);
  /// Names of the members in which two such records differ; "" if in none.
  [[nodiscard]] static std::string differences(const Json& one, const Json& other);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return folder_; }
  [[nodiscard]] std::filesystem::path file_of(int layer_id) const;
  [[nodiscard]] bool has(int layer_id) const;
  /// Once the whole is written: takes away what such folders hold, and the folder if nothing else is in it.
  void remove() const;
  static void remove(const std::filesystem::path& folder);

 private:
  /// Throws DataError if what is there is of other work than `of`.
  void require(const Json& found, const Json& of) const;
  void remove_damaged(Status* status) const;

  std::filesystem::path folder_;
};

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

/// Takes the layers of a source that are not kept yet, up to `lanes` side by side, keeps each as soon as it is taken,
/// and returns all in order. name: what progress is called, "fit: layer". Throws what `take` throws.
template <class Taken>
std::vector<Taken> take_layers(QkvSource& source, KeptLayers<Taken> kept, const std::string& name, int lanes,
                               const std::function<Taken(int layer_id, LayerStream& rows)>& take, Status& status) {
  const std::vector<int> missing = kept.missing(source.layer_ids());
  std::atomic<std::int64_t> done = 0;
  const auto take_and_keep = [&](std::size_t i, const std::unique_ptr<LayerStream>& rows) {
    kept.add(missing[i], take(missing[i], *rows));
    status.progress(name, ++done, std::ssize(missing));
  };
  if (!missing.empty()) for_each_layer(source, missing, lanes, take_and_keep);
  return kept.take(source.layer_ids());
}

}  // namespace oscar
