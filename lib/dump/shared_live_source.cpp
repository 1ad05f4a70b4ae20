// SPDX-License-Identifier: MIT
#include "dump/shared_live_source.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <thread>

#include "base/errors.hpp"
#include "model/tokens.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

Tensor rows_of(const HeadsView& all, SequenceRange range) {
  const HeadsView view = all.tokens(range.begin, range.end);
  Tensor tensor(view.dtype, {view.num_tokens, view.num_heads, view.head_dim});
  std::copy_n(view.data, tensor.data.size(), tensor.data.begin());
  return tensor;
}

std::string name_of_rows(std::size_t sequence, const char* side) { return std::to_string(sequence) + "." + side; }

class Source : public SharedLiveSource {
 public:
  Source(ModelRunner& runner, std::vector<TokenSequence> sequences, const LiveOptions& options, LiveShare share,
         Status& status)
      : runner_(runner),
        share_(std::move(share)),
        slots_(sequence_slots(sequences, options.chunk_tokens)),
        calibration_(describe(sequences)) {
    std::vector<TokenSequence> own;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      if (is_of(s, share_.rank)) own.push_back(std::move(sequences[s]));
    }
    if (slots_.size() < static_cast<std::size_t>(share_.ranks)) {
      throw UsageError(std::to_string(slots_.size()) + " sequences for " + std::to_string(share_.ranks) + " ranks",
                       "--seq-len", "start fewer ranks, or give more text or shorter sequences");
    }
    own_ = open_live(runner, std::move(own), options, status);
    fs::create_directories(share_.folder);
    model_runs_ = std::async(std::launch::async, [this] { run_model(); });
  }

  ~Source() override { stop_ = true; }

  [[nodiscard]] const ModelIdentity& model() const override { return own_->model(); }
  [[nodiscard]] const CalibrationData& calibration() const override { return calibration_; }
  [[nodiscard]] const std::vector<int>& layer_ids() const override { return own_->layer_ids(); }

  [[nodiscard]] std::unique_ptr<LayerStream> open(int layer_id) override {
    std::vector<SafetensorsFile> files;
    for (int rank = 0; rank < share_.ranks; ++rank) {
      const fs::path path = file_of(layer_id, rank);
      wait_until([&] { return fs::exists(path); });
      files.emplace_back(path);
    }
    std::unique_ptr<LayerStream> layer = assemble(layer_id, files);
    for (int rank = 0; rank < share_.ranks; ++rank) fs::remove(file_of(layer_id, rank));
    return layer;
  }

  void finish() override { model_runs_.get(); }

 private:
  [[nodiscard]] bool is_of(std::size_t sequence, int rank) const {
    return sequence % static_cast<std::size_t>(share_.ranks) == static_cast<std::size_t>(rank);
  }

  [[nodiscard]] fs::path file_of(int layer_id, int rank) const {
    return share_.folder / (std::to_string(layer_id) + "_" + std::to_string(rank) + ".safetensors");
  }

  /// Throws what the model threw meanwhile.
  template <class Condition>
  void wait_until(const Condition& holds) {
    using std::chrono::milliseconds;
    while (!holds()) {
      throw_if_interrupted();
      if (stop_) throw Interrupted();
      {
        const std::lock_guard lock(mutex_);
        if (model_error_) std::rethrow_exception(model_error_);
      }
      std::this_thread::sleep_for(milliseconds(2));
    }
  }

  void run_model() try {
    const std::vector<int>& ids = layer_ids();
    const auto ahead = static_cast<std::size_t>(2 * share_.ranks);
    for (std::size_t i = 0; i < ids.size() && !stop_; ++i) {
      if (i >= ahead) wait_until([&] { return !fs::exists(file_of(ids[i - ahead], share_.rank)); });
      write_rows(ids[i], *own_->open(ids[i]));
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    model_error_ = std::current_exception();
    throw;
  }

  void write_rows(int layer_id, LayerStream& stream) const {
    std::vector<std::pair<std::string, Tensor>> tensors;
    auto sequence = static_cast<std::size_t>(share_.rank);
    QkvChunk chunk;
    while (stream.next(chunk)) {
      for (const SequenceRange& range : chunk.sequences) {
        tensors.emplace_back(name_of_rows(sequence, "q"), rows_of(chunk.view.q, range));
        tensors.emplace_back(name_of_rows(sequence, "k"), rows_of(chunk.view.k, range));
        tensors.emplace_back(name_of_rows(sequence, "v"), rows_of(chunk.view.v, range));
        sequence += static_cast<std::size_t>(share_.ranks);
      }
    }
    write_safetensors(file_of(layer_id, share_.rank), tensors, {});
  }

  /// files: by rank.
  [[nodiscard]] std::unique_ptr<LayerStream> assemble(int layer_id, const std::vector<SafetensorsFile>& files) const {
    const auto from = [&](std::size_t sequence, const char* side) -> const TensorRef& {
      return files[sequence % files.size()].at(name_of_rows(sequence, side));
    };
    const auto size = [&](const char* side, std::size_t axis) { return static_cast<int>(from(0, side).shape[axis]); };
    const RowShape shape{from(0, "q").dtype, size("q", 1), size("k", 1), size("q", 2), size("v", 2)};
    auto rows = std::make_shared<const LayerRows>(layer_id, shape, slots_, runner_);
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      const QkvBuffers to = rows->at(slots_[s]);
      for (const auto& [side, buffer] : {std::pair("q", to.q), std::pair("k", to.k), std::pair("v", to.v)}) {
        std::ranges::copy(from(s, side).data, buffer);
      }
    }
    return LayerRows::stream(std::move(rows));
  }

  ModelRunner& runner_;
  LiveShare share_;
  std::vector<SequenceSlot> slots_;  // of all sequences
  CalibrationData calibration_;      // likewise
  std::unique_ptr<QkvSource> own_;   // of the sequences of this process
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::exception_ptr model_error_;
  std::future<void> model_runs_;  // last, since it uses the others
};

}  // namespace

std::unique_ptr<SharedLiveSource> open_shared_live(ModelRunner& runner, std::vector<TokenSequence> sequences,
                                                   const LiveOptions& options, LiveShare share, Status& status) {
  return std::make_unique<Source>(runner, std::move(sequences), options, std::move(share), status);
}

}  // namespace oscar
