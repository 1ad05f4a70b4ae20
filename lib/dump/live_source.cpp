// SPDX-License-Identifier: MIT
#include "dump/live_source.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "model/tokens.hpp"

namespace oscar {
namespace {

struct Chunk {
  Tensor q, k, v;
  std::vector<SequenceRange> sequences;
  std::string where;
};
using Layer = std::vector<Chunk>;

/// Where a sequence goes.
struct Slot {
  std::size_t chunk = 0;
  std::int64_t begin = 0, tokens = 0;
};

/// Rounds rows of `from` into `to` from token `begin` on. False if a rounded value is not finite.
bool store(const HeadsView& from, std::int64_t begin, Tensor& to) {
  const auto count = static_cast<std::size_t>(from.num_tokens * from.num_heads * from.head_dim);
  const std::span source(reinterpret_cast<const float*>(from.data), count);
  const std::size_t offset = static_cast<std::size_t>(begin) * static_cast<std::size_t>(from.num_heads * from.head_dim);
  bool finite = true;
  if (to.dtype == DType::kF32) {
    std::copy(source.begin(), source.end(), to.values<float>().subspan(offset).begin());
    for (const float value : source) finite &= std::isfinite(value);
    return finite;
  }
  const std::span<std::uint16_t> target = to.values<std::uint16_t>().subspan(offset, count);
  const bool bf16 = to.dtype == DType::kBF16;
  for (std::size_t i = 0; i < count; ++i) {
    target[i] = bf16 ? bf16_from_float(source[i]) : f16_from_float(source[i]);
    const std::uint16_t exponent = bf16 ? 0x7f80U : 0x7c00U;
    finite &= (target[i] & exponent) != exponent;
  }
  return finite;
}

class LiveStream : public LayerStream {
 public:
  explicit LiveStream(std::shared_ptr<const Layer> layer) : layer_(std::move(layer)) {}

  bool next(QkvChunk& out) override {
    if (next_ == layer_->size()) return false;
    const Chunk& chunk = (*layer_)[next_++];
    out.view = {heads_view(chunk.q, chunk.where), heads_view(chunk.k, chunk.where), heads_view(chunk.v, chunk.where)};
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
      : config_(runner.config()),
        sequences_(std::move(sequences)),
        calibration_(describe(sequences_)),
        dtype_(dtype_from_name(options.dtype == "auto" ? config_.torch_dtype : options.dtype)) {
    OSCAR_CHECK(is_activation_dtype(dtype_) && options.chunk_tokens > 0);
    choose_layers(options.layers);
    assign_slots(options.chunk_tokens);
    pass_ = runner.begin(sequences_, status);
  }

  [[nodiscard]] const ModelIdentity& model() const override { return config_.identity; }
  [[nodiscard]] const CalibrationData& calibration() const override { return calibration_; }
  [[nodiscard]] const std::vector<int>& layer_ids() const override { return layer_ids_; }

  [[nodiscard]] std::unique_ptr<LayerStream> open(int layer_id) override {
    OSCAR_CHECK(std::binary_search(layer_ids_.begin(), layer_ids_.end(), layer_id) && layer_id >= pass_->layer());
    while (pass_->layer() < layer_id) pass_->step({}, false);
    const auto layer = std::make_shared<Layer>(empty_chunks(layer_id));
    const auto keep = [&](int, std::size_t s, const QkvView& qkv, std::span<float>) {
      Chunk& chunk = (*layer)[slots_[s].chunk];
      keep_rows(qkv.q, "q", layer_id, s, chunk.q);
      keep_rows(qkv.k, "k", layer_id, s, chunk.k);
      keep_rows(qkv.v, "v", layer_id, s, chunk.v);
      return false;
    };
    pass_->step(keep, layer_id == layer_ids_.back());
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

  void assign_slots(std::int64_t chunk_tokens) {
    for (const TokenSequence& sequence : sequences_) {
      const auto tokens = static_cast<std::int64_t>(sequence.size());
      if (chunk_sizes_.empty() || chunk_sizes_.back() + tokens > chunk_tokens) chunk_sizes_.push_back(0);
      slots_.push_back({chunk_sizes_.size() - 1, chunk_sizes_.back(), tokens});
      chunk_sizes_.back() += tokens;
    }
  }

  [[nodiscard]] Layer empty_chunks(int layer_id) const {
    Layer layer;
    const MixerSpec& mixer = config_.blocks[static_cast<std::size_t>(layer_id)].mixer;
    for (const std::int64_t tokens : chunk_sizes_) {
      const auto zeros = [&](int heads, int dim) { return Tensor(dtype_, {tokens, heads, dim}); };
      layer.push_back({zeros(mixer.num_heads, mixer.head_dim),
                       zeros(mixer.num_kv_heads, mixer.head_dim),
                       zeros(mixer.num_kv_heads, mixer.value_dim),
                       {},
                       "layer " + std::to_string(layer_id) + ", chunk " + std::to_string(layer.size() + 1)});
    }
    for (const Slot& slot : slots_) layer[slot.chunk].sequences.push_back({slot.begin, slot.begin + slot.tokens});
    return layer;
  }

  void keep_rows(const HeadsView& rows, const char* what, int layer_id, std::size_t sequence, Tensor& to) const {
    if (store(rows, slots_[sequence].begin, to)) return;
    throw DataError(
        std::string(what) + " has values that are not finite in " + std::string(name_of(dtype_)),
        config_.identity.id + ", layer " + std::to_string(layer_id) + ", sequence " + std::to_string(sequence),
        "check the checkpoint, or choose a wider --dtype");
  }

  const ModelConfig config_;
  std::vector<TokenSequence> sequences_;
  CalibrationData calibration_;
  DType dtype_;
  std::vector<int> layer_ids_;
  std::vector<Slot> slots_;                // by sequence
  std::vector<std::int64_t> chunk_sizes_;  // in tokens
  std::unique_ptr<ModelPass> pass_;
};

}  // namespace

std::unique_ptr<QkvSource> open_live(ModelRunner& runner, std::vector<TokenSequence> sequences,
                                     const LiveOptions& options, Status& status) {
  return std::make_unique<LiveSource>(runner, std::move(sequences), options, status);
}

}  // namespace oscar
