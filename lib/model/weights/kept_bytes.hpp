// SPDX-License-Identifier: MIT
// Weights that were read from a server, in memory for the next pass over the model: whoever measures a model runs it
// many times. Layers come in the same order each time, so that what came first stays, as much as there is room for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace oscar {

/// The weights of one model that stay in memory take at most this many bytes.
inline constexpr std::uint64_t kKeptBytes = std::uint64_t{2} << 30;

/// Any thread may use it.
class KeptBytes {
 public:
  /// Keeps as many bytes as this from now on. Before the first call, none are kept.
  void allow(std::uint64_t bytes);
  /// Copies what was kept of exactly these bytes, which are a name and are not touched; false: nothing was.
  [[nodiscard]] bool copy(std::span<const std::byte> name, std::byte* to) const;
  /// Keeps name.size() bytes, if there is room.
  void add(std::span<const std::byte> name, const std::byte* bytes);

 private:
  using Key = std::pair<const std::byte*, std::size_t>;

  mutable std::mutex mutex_;
  std::map<Key, std::shared_ptr<const std::vector<std::byte>>> kept_;  // null: on its way in
  std::uint64_t allowed_ = 0, held_ = 0;
};

}  // namespace oscar
