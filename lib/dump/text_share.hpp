// SPDX-License-Identifier: MIT
// Several processes that run one model, each over its own chunks of the text: who reads which, and how they tell each
// other what they found in a layer. Non-goal: how values travel, which the caller provides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace oscar {

class LayerStream;

/// Chunks [first, last) of a text.
struct ChunkRange {
  std::size_t first = 0, last = SIZE_MAX;
  [[nodiscard]] bool contains(std::size_t chunk) const { return first <= chunk && chunk < last; }
  friend bool operator==(const ChunkRange&, const ChunkRange&) = default;
};

/// Process `rank` of `size`.
struct TextShare {
  int rank = 0, size = 1;
  /// Shows a value to all processes, each key once.
  std::function<void(const std::string& key, const std::string& value)> put;
  /// Waits for a value and removes it.
  std::function<std::string(const std::string& key)> take;
  /// Returns the chunks that this process reads. It is told the chunks of every layer, without rows. Processes of
  /// ascending rank read ascending chunks, all of them together; some may get none.
  std::function<ChunkRange(std::span<const std::unique_ptr<LayerStream>> layers)> choose;
};

/// One layer of a shared text. All processes make the same calls, in the same order, and one of them fits the layer.
class SharedLayer {
 public:
  /// share must outlive it. fitter: the rank of the process that fits the layer.
  SharedLayer(const TextShare& share, int layer_id, int fitter);

  /// Whether this process fits the layer.
  [[nodiscard]] bool fits() const { return share_.rank == fitter_; }
  /// Returns what all processes give, one behind the other in the order of the text, to the process that fits the
  /// layer, and nothing to the others. Throws what `take` throws.
  [[nodiscard]] std::string gather(const std::string& own);
  /// Returns to all processes what the one that fits the layer gives.
  [[nodiscard]] std::string spread(const std::string& value);

 private:
  [[nodiscard]] std::string next_key();

  const TextShare& share_;
  int layer_id_, fitter_;
  int calls_ = 0;
};

}  // namespace oscar
