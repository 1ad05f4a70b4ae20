// SPDX-License-Identifier: MIT
#include "dump/live_source.hpp"

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>

#include "base/errors.hpp"
#include "model/tokenizer/tokens.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

/// Where a sequence's rows lie in a layer.
struct SequenceSlot {
  std::size_t chunk = 0;
  std::int64_t begin = 0, tokens = 0, first_position = 0;
};
/// Sequences share a chunk until it has chunk_tokens; a longer sequence has a chunk of its own.
std::vector<SequenceSlot> sequence_slots(const std::vector<TokenSequence>& sequences, const LiveOptions& options) {
  std::vector<SequenceSlot> slots;
  for (const TokenSequence& sequence : sequences) {
    const auto tokens = static_cast<std::int64_t>(sequence.size());
    SequenceSlot slot{.tokens = tokens};
    if (!slots.empty()) {
      const std::int64_t end = slots.back().begin + slots.back().tokens;
      const bool fits = end + tokens <= options.chunk_tokens;
      slot.chunk = slots.back().chunk + (fits ? 0 : 1);
      slot.begin = fits ? end : 0;
    }
    if (!options.first_positions.empty()) slot.first_position = options.first_positions[slots.size()];
    slots.push_back(slot);
  }
  return slots;
}

/// The type and shapes of q (tokens, num_heads, head_dim), k (tokens, num_kv_heads, head_dim) and v (tokens,
/// num_kv_heads, value_dim).
struct RowShape {
  DType dtype;
  int num_heads, num_kv_heads, head_dim, value_dim;
  friend bool operator==(const RowShape&, const RowShape&) = default;
};

/// The rows of one layer in memory: what a running model is captured into, and a fit reads.
class LayerRows {
 public:
  /// Finds memory of the runner's choice. slots: by sequence.
  LayerRows(int layer_id, const RowShape& shape, const std::vector<SequenceSlot>& slots, const ModelRunner& runner) {
    std::vector<std::int64_t> sizes;  // of chunks, in tokens
    for (const SequenceSlot& slot : slots) {
      if (slot.chunk == sizes.size()) sizes.push_back(0);
      sizes.back() += slot.tokens;
    }
    for (const std::int64_t tokens : sizes) {
      Chunk& chunk = chunks_.emplace_back();
      const auto make = [&](int heads, int dim, std::shared_ptr<std::byte>& memory) {
        HeadsView view{nullptr, shape.dtype, tokens, heads, dim};
        memory = runner.host_memory(static_cast<std::size_t>(tokens * view.bytes_per_token()));
        view.data = memory.get();
        return view;
      };
      chunk.rows.view = {make(shape.num_heads, shape.head_dim, chunk.q),
                         make(shape.num_kv_heads, shape.head_dim, chunk.k),
                         make(shape.num_kv_heads, shape.value_dim, chunk.v)};
      chunk.rows.where = "layer " + std::to_string(layer_id) + ", chunk " + std::to_string(chunks_.size());
      chunk.rows.remedy = "look at the weights of this layer";
    }
    for (const SequenceSlot& slot : slots) {
      QkvChunk& rows = chunks_[slot.chunk].rows;
      rows.sequences.push_back({slot.begin, slot.begin + slot.tokens});
      rows.first_positions.push_back(slot.first_position);
    }
  }

  /// Returns the memory that the rows of a sequence belong in.
  [[nodiscard]] QkvBuffers at(const SequenceSlot& slot) const {
    const Chunk& chunk = chunks_[slot.chunk];
    const QkvView& view = chunk.rows.view;
    const auto of = [&](const std::shared_ptr<std::byte>& memory, const HeadsView& rows) {
      return memory.get() + slot.begin * rows.bytes_per_token();
    };
    return {view.q.dtype, of(chunk.q, view.q), of(chunk.k, view.k), of(chunk.v, view.v)};
  }

 private:
  friend class RowsInMemory;
  struct Chunk {
    QkvChunk rows;
    std::shared_ptr<std::byte> q, k, v;
  };

  std::vector<Chunk> chunks_;
};

/// Reads the rows, and keeps them.
class RowsInMemory : public LayerStream {
 public:
  explicit RowsInMemory(std::shared_ptr<const LayerRows> rows) : rows_(std::move(rows)) {}

  bool next(QkvChunk& out) override {
    if (next_ == rows_->chunks_.size()) return false;
    out = rows_->chunks_[next_++].rows;
    out.owner = rows_;
    return true;
  }
  void rewind() override { next_ = 0; }

 private:
  std::shared_ptr<const LayerRows> rows_;
  std::size_t next_ = 0;
};

constexpr int kShare = 20;  // of the time, that writing hidden states may take: one in so many

/// Hidden states of a live model in a folder, so that a fit that ended early need not run the layers again that it is
/// done with. One file of a row per token (hidden_size values, and the keys and values that later layers share), two at
/// most: a file counts only once everything was fitted that came before it.
class LiveStates {
 public:
  /// layers: those that open, ascending. is_kept: whether what was made of one of them is safe; may be called from any
  /// thread. `status` must outlive this.
  LiveStates(fs::path folder, std::vector<int> layers, std::function<bool(int layer)> is_kept, Status& status)
      : folder_(std::move(folder)), layers_(std::move(layers)), is_kept_(std::move(is_kept)), status_(status) {}

  /// Takes a pass that has not begun behind as many layers as possible, and says so.
  void restore(ModelPass& pass) {
    for (int layer = layers_.empty() ? 0 : layers_.back(); layer > 0; --layer) {
      if (!fs::exists(file_of(layer)) || !counts(layer)) continue;
      try {
        pass.restore(file_of(layer));
      } catch (const DataError& error) {
        return status_.notice("the model runs again from its first layer: " + std::string(error.what()));
      }
      newest_ = layer;
      return status_.notice("the model goes on at layer " + std::to_string(layer) +
                            ", with hidden states that were kept");
    }
  }

  /// Called between steps: keeps the states if it is time to. Where that fails, it warns and gives up.
  void offer(const ModelPass& pass) {
    const int layer = pass.layer();
    const auto begin = std::chrono::steady_clock::now();
    if (failed_ || layer <= newest_ || !counts(newest_) || begin < not_before_) return;
    try {
      remove_before(newest_);
      pass.save(file_of(layer));
      newest_ = layer;
      if (counts(layer)) remove_before(layer);
    } catch (const IoError& error) {
      failed_ = true;
      status_.warning(std::string("hidden states are not kept, --resume will run all layers again: ") + error.what());
    }
    const auto end = std::chrono::steady_clock::now();
    not_before_ = end + kShare * (end - begin);
  }

 private:
  [[nodiscard]] fs::path file_of(int layer) const {
    return folder_ / ("hidden_" + std::to_string(layer) + ".safetensors");
  }
  [[nodiscard]] bool counts(int layer) const {
    return std::ranges::all_of(layers_, [&](int id) { return id >= layer || is_kept_(id); });
  }
  void remove_before(int layer) const {
    std::error_code ignored;
    for (int older = 1; older < layer; ++older) fs::remove(file_of(older), ignored);
  }

  fs::path folder_;
  std::vector<int> layers_;
  std::function<bool(int layer)> is_kept_;
  Status& status_;
  int newest_ = 0;  // that is there; 0 = none
  bool failed_ = false;
  std::chrono::steady_clock::time_point not_before_{};
};

constexpr int kLayersAtATime = 3;  // of whose rows a fit on a GPU takes sums, while the next is captured

class Source : public LiveSource {
 public:
  Source(ModelRunner& runner, std::vector<TokenSequence> sequences, const LiveOptions& options, Status& status)
      : runner_(runner),
        config_(runner.config()),
        sequences_(std::move(sequences)),
        status_(status),
        slots_(sequence_slots(sequences_, options)),
        to_the_end_(options.to_the_end),
        dtype_(dtype_from_name(options.dtype == "auto" ? config_.torch_dtype : options.dtype)) {
    OSCAR_CHECK(is_activation_dtype(dtype_) && options.chunk_tokens > 0);
    model_ = config_.identity, calibration_ = describe(sequences_);
    choose_layers(options.layers);
    const int layers = to_the_end_ || layer_ids_.empty() ? config_.num_layers : layer_ids_.back() + 1;
    const PassOptions pass{layers, /*prepare=*/true, options.first_positions};
    pass_ = runner.begin(sequences_, pass, status);
    if (runner.keeps_host_memory() && !layer_ids_.empty()) {
      finding_memory_ = std::async(std::launch::async, [this] { find_memory(); });
    }
  }

  void keep_states(const std::filesystem::path& folder, std::function<bool(int)> is_kept) override {
    states_.emplace(folder, layer_ids_, std::move(is_kept), status_).restore(*pass_);
  }

  [[nodiscard]] std::unique_ptr<LayerStream> open(int layer_id) override {
    OSCAR_CHECK(std::binary_search(layer_ids_.begin(), layer_ids_.end(), layer_id) && layer_id >= pass_->layer());
    while (pass_->layer() < layer_id) pass_->step({}, false);
    if (states_) states_->offer(*pass_);
    const auto rows = std::make_shared<const LayerRows>(layer_id, shape_of(layer_id), slots_, runner_);
    const auto place = [&](std::size_t s) { return rows->at(slots_[s]); };
    pass_->capture(place, !to_the_end_ && layer_id == layer_ids_.back());
    return std::make_unique<RowsInMemory>(rows);
  }

  void wait_until_ready() override {
    if (finding_memory_.valid()) finding_memory_.get();
    pass_->wait_until_ready();
  }

  [[nodiscard]] std::unique_ptr<FinalStates> final_states() override {
    OSCAR_CHECK(to_the_end_);
    while (pass_->layer() < config_.num_layers) pass_->step({}, false);
    return pass_->final_states();
  }

 private:
  [[nodiscard]] RowShape shape_of(int layer_id) const {
    const MixerSpec& mixer = config_.block(layer_id).mixer;
    return {dtype_, mixer.num_heads, mixer.num_kv_heads, mixer.head_dim, mixer.value_dim};
  }

  /// Memory that a GPU's copies reach at full speed takes long to find, but is kept once found: as much as there will
  /// be layers at a time.
  void find_memory() const {
    std::vector<LayerRows> rows;
    for (int i = 0; i < kLayersAtATime; ++i)
      rows.emplace_back(layer_ids_.front(), shape_of(layer_ids_.front()), slots_, runner_);
  }

  void choose_layers(std::vector<int> wanted) {
    if (wanted.empty()) wanted = config_.cache_layers();
    std::sort(wanted.begin(), wanted.end());
    wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
    const RowShape usual = shape_of(config_.cache_layers().front());
    for (const int layer : wanted) {
      if (layer < 0 || layer >= config_.num_layers) {
        throw UsageError("the model has no layer " + std::to_string(layer), "--layers",
                         "name layers from 0 to " + std::to_string(config_.num_layers - 1));
      }
      if (const int cache = config_.cache_of(layer); cache != layer) {
        throw UsageError("layer " + std::to_string(layer) + " reads the keys and values of layer " +
                             std::to_string(cache) + " and has none of its own",
                         "--layers",
                         "leave it out: what is fitted for layer " + std::to_string(cache) + " holds for it");
      }
      if (!config_.block(layer).has_cache()) {
        throw UsageError("layer " + std::to_string(layer) + " has no keys and values", "--layers",
                         "leave out layers without softmax attention");
      }
      if (shape_of(layer) != usual) {
        throw UsageError("layer " + std::to_string(layer) + " has other heads than the model's caches that grow",
                         "--layers", "leave it out: a dump, and a set, has heads of one number and size");
      }
    }
    layer_ids_ = std::move(wanted);
  }

  ModelRunner& runner_;
  const ModelConfig config_;
  std::vector<TokenSequence> sequences_;
  Status& status_;
  std::vector<SequenceSlot> slots_;  // by sequence
  bool to_the_end_;
  DType dtype_;
  std::unique_ptr<ModelPass> pass_;
  std::optional<LiveStates> states_;
  std::future<void> finding_memory_;  // last, since it uses the others
};

}  // namespace

std::unique_ptr<LiveSource> open_live(ModelRunner& runner, std::vector<TokenSequence> sequences,
                                      const LiveOptions& options, Status& status) {
  return std::make_unique<Source>(runner, std::move(sequences), options, status);
}

}  // namespace oscar
