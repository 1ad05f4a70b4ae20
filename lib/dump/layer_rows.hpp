// SPDX-License-Identifier: MIT
// The rows of one layer in memory: what a running model is captured into, and a fit reads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dump/source.hpp"
#include "model/run/runner.hpp"

namespace oscar {

/// Where a sequence's rows lie in a layer.
struct SequenceSlot {
  std::size_t chunk = 0;
  std::int64_t begin = 0, tokens = 0;
};
/// Sequences share a chunk until it has chunk_tokens; a longer sequence has a chunk of its own.
[[nodiscard]] std::vector<SequenceSlot> sequence_slots(const std::vector<TokenSequence>& sequences,
                                                       std::int64_t chunk_tokens);

/// The type and shapes of q (tokens, num_heads, head_dim), k (tokens, num_kv_heads, head_dim) and v (tokens,
/// num_kv_heads, value_dim).
struct RowShape {
  DType dtype;
  int num_heads, num_kv_heads, head_dim, value_dim;
};

class LayerRows {
 public:
  /// Finds memory of the runner's choice. slots: by sequence.
  LayerRows(int layer_id, const RowShape& shape, const std::vector<SequenceSlot>& slots, const ModelRunner& runner);

  /// Returns the memory that the rows of a sequence belong in.
  [[nodiscard]] QkvBuffers at(const SequenceSlot& slot) const;
  /// Reads the rows, and keeps them.
  [[nodiscard]] static std::unique_ptr<LayerStream> stream(std::shared_ptr<const LayerRows> rows);

 private:
  class Stream;
  struct Chunk {
    QkvView view;
    std::shared_ptr<std::byte> q, k, v;
    std::vector<SequenceRange> sequences;
    std::string where;
  };

  std::vector<Chunk> chunks_;
};

}  // namespace oscar
