// SPDX-License-Identifier: MIT
// A QkvSource over tensors in memory, and a small dump on disk.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "dump/source.hpp"

namespace oscar::test {

/// One chunk: tensors [T, H, d] and the sequences in it.
struct MemoryChunk {
  Tensor q, k, v;
  std::vector<SequenceRange> sequences;
};

class MemoryStream : public LayerStream {
 public:
  explicit MemoryStream(const std::vector<MemoryChunk>& chunks) : chunks_(chunks) {}
  bool next(QkvChunk& out) override {
    if (next_ == chunks_.size()) return false;
    const MemoryChunk& chunk = chunks_[next_];
    out.view = {heads_view(chunk.q, "q"), heads_view(chunk.k, "k"), heads_view(chunk.v, "v")};
    out.sequences = chunk.sequences;
    out.where = "chunk " + std::to_string(next_++);
    return true;
  }
  /// As a stream that has no rows of what is skipped.
  bool skip(QkvChunk& out) override {
    if (!next(out)) return false;
    for (HeadsView* side : {&out.view.q, &out.view.k, &out.view.v}) side->data = nullptr;
    return true;
  }
  void rewind() override { next_ = 0; }

 private:
  const std::vector<MemoryChunk>& chunks_;
  std::size_t next_ = 0;
};

class MemorySource : public QkvSource {
 public:
  explicit MemorySource(std::map<int, std::vector<MemoryChunk>> layers) : layers_(std::move(layers)) {
    for (const auto& entry : layers_) layer_ids_.push_back(entry.first);
    if (layers_.empty()) return;
    for (const MemoryChunk& chunk : layers_.begin()->second) {
      calibration_.sequences += static_cast<std::int64_t>(chunk.sequences.size());
      calibration_.tokens += chunk.k.shape[0];
    }
  }
  [[nodiscard]] std::unique_ptr<LayerStream> open(int layer_id) override {
    return std::make_unique<MemoryStream>(layers_.at(layer_id));
  }

 private:
  std::map<int, std::vector<MemoryChunk>> layers_;
};

}  // namespace oscar::test
