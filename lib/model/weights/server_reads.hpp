// SPDX-License-Identifier: MIT
// Weights that lie at a server, and stay in memory for those who need them again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "tensor/safetensors.hpp"

namespace oscar {

/// Rows of a matrix at a server. What one sequence of tokens needs, the next needs again for the most part: rows stay
/// in memory, and rows that lie near each other come in one request.
class RemoteRows {
 public:
  struct Part {
    std::span<const std::byte> from;  // of the matrix
    std::span<std::byte> to;
  };
  /// Reads parts of the matrix, at the same time.
  using Read = std::function<void(std::span<const Part> parts)>;

  /// Copies bytes [begin, begin + count) of rows of `matrix`, in the order given. Always the same matrix. Throws what
  /// `read` throws.
  void read(const TensorRef& matrix, std::span<const std::int32_t> rows, std::size_t begin, std::size_t count,
            std::byte* to, const Read& read);

 private:
  void fetch(const TensorRef& matrix, std::vector<std::int32_t> rows, const Read& read);

  std::mutex mutex_;
  std::map<std::int32_t, std::vector<std::byte>> kept_;  // by row: as many as there are different tokens, at most
};

/// The weights of one model that stay in memory take at most this many bytes.
inline constexpr std::uint64_t kKeptBytes = std::uint64_t{2} << 30;

/// What was read from a server, in memory for the next pass over the model: whoever measures a model runs it many
/// times. Layers come in the same order each time, so that what came first stays, as much as there is room for. Any
/// thread may use it.
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
