// SPDX-License-Identifier: MIT
#include "dump/layer_rows.hpp"

#include <string>

namespace oscar {

class LayerRows::Stream : public LayerStream {
 public:
  explicit Stream(std::shared_ptr<const LayerRows> rows) : rows_(std::move(rows)) {}

  bool next(QkvChunk& out) override {
    if (next_ == rows_->chunks_.size()) return false;
    const Chunk& chunk = rows_->chunks_[next_++];
    out.view = chunk.view;
    out.owner = rows_;
    out.sequences = chunk.sequences;
    out.where = chunk.where;
    return true;
  }
  void rewind() override { next_ = 0; }

 private:
  std::shared_ptr<const LayerRows> rows_;
  std::size_t next_ = 0;
};

std::vector<SequenceSlot> sequence_slots(const std::vector<TokenSequence>& sequences, std::int64_t chunk_tokens) {
  std::vector<SequenceSlot> slots;
  for (const TokenSequence& sequence : sequences) {
    const auto tokens = static_cast<std::int64_t>(sequence.size());
    SequenceSlot slot{.tokens = tokens};
    if (!slots.empty()) {
      const std::int64_t end = slots.back().begin + slots.back().tokens;
      const bool fits = end + tokens <= chunk_tokens;
      slot.chunk = slots.back().chunk + (fits ? 0 : 1);
      slot.begin = fits ? end : 0;
    }
    slots.push_back(slot);
  }
  return slots;
}

LayerRows::LayerRows(int layer_id, const RowShape& shape, const std::vector<SequenceSlot>& slots,
                     const ModelRunner& runner) {
  std::vector<std::int64_t> sizes;  // of chunks, in tokens
  for (const SequenceSlot& slot : slots) {
    if (slot.chunk == sizes.size()) sizes.push_back(0);
    sizes.back() += slot.tokens;
  }
  for (const std::int64_t tokens : sizes) {
    Chunk chunk{.where = "layer " + std::to_string(layer_id) + ", chunk " + std::to_string(chunks_.size() + 1)};
    const auto make = [&](int heads, int dim, std::shared_ptr<std::byte>& memory) {
      HeadsView view{nullptr, shape.dtype, tokens, heads, dim};
      memory = runner.host_memory(static_cast<std::size_t>(tokens * view.bytes_per_token()));
      view.data = memory.get();
      return view;
    };
    chunk.view = {make(shape.num_heads, shape.head_dim, chunk.q), make(shape.num_kv_heads, shape.head_dim, chunk.k),
                  make(shape.num_kv_heads, shape.value_dim, chunk.v)};
    chunks_.push_back(std::move(chunk));
  }
  for (const SequenceSlot& slot : slots) {
    chunks_[slot.chunk].sequences.push_back({slot.begin, slot.begin + slot.tokens});
  }
}

QkvBuffers LayerRows::at(const SequenceSlot& slot) const {
  const Chunk& chunk = chunks_[slot.chunk];
  const auto of = [&](const std::shared_ptr<std::byte>& rows, const HeadsView& view) {
    return rows.get() + slot.begin * view.bytes_per_token();
  };
  return {chunk.view.q.dtype, of(chunk.q, chunk.view.q), of(chunk.k, chunk.view.k), of(chunk.v, chunk.view.v)};
}

std::unique_ptr<LayerStream> LayerRows::stream(std::shared_ptr<const LayerRows> rows) {
  return std::make_unique<Stream>(std::move(rows));
}

}  // namespace oscar
