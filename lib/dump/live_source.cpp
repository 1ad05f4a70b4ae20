// SPDX-License-Identifier: MIT
#include "dump/live_source.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "model/tokens.hpp"

namespace oscar {
namespace {

/// Some sequences of a layer, in memory of the runner's choice.
struct Chunk {
  QkvView view;
  std::shared_ptr<std::byte> q, k, v;
  std::vector<SequenceRange> sequences;
  std::string where;
};
using Layer = std::vector<Chunk>;

class LiveStream : public LayerStream {
 public:
  explicit LiveStream(std::shared_ptr<const Layer> layer) : layer_(std::move(layer)) {}

  bool next(QkvChunk& out) override {
    if (next_ == layer_->size()) return false;
    const Chunk& chunk = (*layer_)[next_++];
    out.view = chunk.view;
    out.owner = layer_;
    out.sequences = chunk.sequences;
    out.where = chunk.where;
    return true;
  }
  void rewind() override { next_ = 0; }

 private:
  std::shared_ptr<const Layer> layer_;
  std::size_t next_ = 0;
};

class LiveSource : public QkvSource {
 public:
  LiveSource(ModelRunner& runner, std::vector<TokenSequence> sequences, const LiveOptions& options, Status& status)
      : runner_(runner),
        config_(runner.config()),
        sequences_(std::move(sequences)),
        calibration_(describe(sequences_)),
        slots_(sequence_slots(sequences_, options.chunk_tokens)),
        dtype_(dtype_from_name(options.dtype == "auto" ? config_.torch_dtype : options.dtype)) {
    OSCAR_CHECK(is_activation_dtype(dtype_) && options.chunk_tokens > 0);
    choose_layers(options.layers);
    for (const SequenceSlot& slot : slots_) {
      if (slot.chunk == chunk_sizes_.size()) chunk_sizes_.push_back(0);
      chunk_sizes_.back() += slot.tokens;
    }
    pass_ = runner.begin(sequences_, status);
  }

  [[nodiscard]] const ModelIdentity& model() const override { return config_.identity; }
  [[nodiscard]] const CalibrationData& calibration() const override { return calibration_; }
  [[nodiscard]] const std::vector<int>& layer_ids() const override { return layer_ids_; }

  [[nodiscard]] std::unique_ptr<LayerStream> open(int layer_id) override {
    OSCAR_CHECK(std::binary_search(layer_ids_.begin(), layer_ids_.end(), layer_id) && layer_id >= pass_->layer());
    while (pass_->layer() < layer_id) pass_->step({}, false);
    const auto layer = std::make_shared<Layer>(empty_chunks(layer_id));
    const auto place = [&](std::size_t s) {
      Chunk& chunk = (*layer)[slots_[s].chunk];
      const auto at = [&](const std::shared_ptr<std::byte>& rows, const HeadsView& view) {
        return rows.get() + slots_[s].begin * view.bytes_per_token();
      };
      return QkvBuffers{dtype_, at(chunk.q, chunk.view.q), at(chunk.k, chunk.view.k), at(chunk.v, chunk.view.v)};
    };
    pass_->capture(place, layer_id == layer_ids_.back());
    return std::make_unique<LiveStream>(layer);
  }

 private:
  void choose_layers(std::vector<int> wanted) {
    if (wanted.empty()) wanted = config_.cache_layers();
    std::sort(wanted.begin(), wanted.end());
    wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
    for (const int layer : wanted) {
      if (layer < 0 || layer >= config_.num_layers) {
        throw UsageError("the model has no layer " + std::to_string(layer), "--layers",
                         "name layers from 0 to " + std::to_string(config_.num_layers - 1));
      }
      if (!config_.blocks[static_cast<std::size_t>(layer)].has_cache()) {
        throw UsageError("layer " + std::to_string(layer) + " has no keys and values", "--layers",
                         "leave out layers without softmax attention");
      }
    }
    layer_ids_ = std::move(wanted);
  }

  [[nodiscard]] Layer empty_chunks(int layer_id) const {
    Layer layer;
    const MixerSpec& mixer = config_.blocks[static_cast<std::size_t>(layer_id)].mixer;
    for (const std::int64_t tokens : chunk_sizes_) {
      Chunk chunk{.where = "layer " + std::to_string(layer_id) + ", chunk " + std::to_string(layer.size() + 1)};
      const auto make = [&](int heads, int dim, std::shared_ptr<std::byte>& memory) {
        HeadsView view{nullptr, dtype_, tokens, heads, dim};
        memory = runner_.host_memory(static_cast<std::size_t>(tokens * view.bytes_per_token()));
        view.data = memory.get();
        return view;
      };
      chunk.view = {make(mixer.num_heads, mixer.head_dim, chunk.q), make(mixer.num_kv_heads, mixer.head_dim, chunk.k),
                    make(mixer.num_kv_heads, mixer.value_dim, chunk.v)};
      layer.push_back(std::move(chunk));
    }
    for (const SequenceSlot& slot : slots_)
      layer[slot.chunk].sequences.push_back({slot.begin, slot.begin + slot.tokens});
    return layer;
  }

  ModelRunner& runner_;
  const ModelConfig config_;
  std::vector<TokenSequence> sequences_;
  CalibrationData calibration_;
  std::vector<SequenceSlot> slots_;  // by sequence
  DType dtype_;
  std::vector<int> layer_ids_;
  std::vector<std::int64_t> chunk_sizes_;  // in tokens
  std::unique_ptr<ModelPass> pass_;
};

}  // namespace

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

std::unique_ptr<QkvSource> open_live(ModelRunner& runner, std::vector<TokenSequence> sequences,
                                     const LiveOptions& options, Status& status) {
  return std::make_unique<LiveSource>(runner, std::move(sequences), options, status);
}

}  // namespace oscar
