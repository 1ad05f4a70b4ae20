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
  /// As a stream at a server.
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
    }
  }
  [[nodiscard]] const ModelIdentity& model() const override { return model_; }
  [[nodiscard]] const CalibrationData& calibration() const override { return calibration_; }
  [[nodiscard]] const std::vector<int>& layer_ids() const override { return layer_ids_; }
  [[nodiscard]] std::unique_ptr<LayerStream> open(int layer_id) override {
    return std::make_unique<MemoryStream>(layers_.at(layer_id));
  }

 private:
  std::map<int, std::vector<MemoryChunk>> layers_;
  std::vector<int> layer_ids_;
  ModelIdentity model_;
  CalibrationData calibration_;
};

/// Notes what may be read ahead when a layer is opened.
class WatchedSource : public MemorySource {
 public:
  using MemorySource::MemorySource;
  struct Opening {
    int layer_id;
    std::size_t first = 0, last = SIZE_MAX;  // chunks of it
    std::size_t layers = 0;                  // that are expected
  };
  void expect(std::span<const int> layer_ids) override { expected_ = layer_ids.size(); }
  void expect_part(int layer_id, std::size_t first, std::size_t last) override { parts_[layer_id] = {first, last}; }
  [[nodiscard]] std::unique_ptr<LayerStream> open(int layer_id) override {
    const auto [first, last] = part(layer_id);
    openings.push_back({layer_id, first, last, expected_});
    return MemorySource::open(layer_id);
  }
  [[nodiscard]] std::pair<std::size_t, std::size_t> part(int layer_id) const {
    const auto found = parts_.find(layer_id);
    return found == parts_.end() ? std::pair<std::size_t, std::size_t>(0, SIZE_MAX) : found->second;
  }
  [[nodiscard]] std::size_t expected() const { return expected_; }

  std::vector<Opening> openings;

 private:
  std::size_t expected_ = SIZE_MAX;
  std::map<int, std::pair<std::size_t, std::size_t>> parts_;
};

}  // namespace oscar::test
