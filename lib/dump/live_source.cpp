// SPDX-License-Identifier: MIT
#include "dump/live_source.hpp"

#include <algorithm>
#include <optional>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "dump/live_states.hpp"
#include "model/tokens.hpp"

namespace oscar {
namespace {

class Source : public LiveSource {
 public:
  Source(ModelRunner& runner, std::vector<TokenSequence> sequences, const LiveOptions& options, Status& status)
      : runner_(runner),
        config_(runner.config()),
        sequences_(std::move(sequences)),
        calibration_(describe(sequences_)),
        status_(status),
        slots_(sequence_slots(sequences_, options.chunk_tokens)),
        dtype_(dtype_from_name(options.dtype == "auto" ? config_.torch_dtype : options.dtype)) {
    OSCAR_CHECK(is_activation_dtype(dtype_) && options.chunk_tokens > 0);
    choose_layers(options.layers);
    pass_ = runner.begin(sequences_, layer_ids_.empty() ? config_.num_layers : layer_ids_.back() + 1, status);
  }

  [[nodiscard]] const ModelIdentity& model() const override { return config_.identity; }
  [[nodiscard]] const CalibrationData& calibration() const override { return calibration_; }
  [[nodiscard]] const std::vector<int>& layer_ids() const override { return layer_ids_; }

  void keep_states(const std::filesystem::path& folder, std::function<bool(int)> is_kept) override {
    states_.emplace(folder, layer_ids_, std::move(is_kept), status_).restore(*pass_);
  }

  [[nodiscard]] std::unique_ptr<LayerStream> open(int layer_id) override {
    OSCAR_CHECK(std::binary_search(layer_ids_.begin(), layer_ids_.end(), layer_id) && layer_id >= pass_->layer());
    while (pass_->layer() < layer_id) pass_->step({}, false);
    if (states_) states_->offer(*pass_);
    const MixerSpec& mixer = config_.blocks[static_cast<std::size_t>(layer_id)].mixer;
    const RowShape shape{dtype_, mixer.num_heads, mixer.num_kv_heads, mixer.head_dim, mixer.value_dim};
    const auto rows = std::make_shared<const LayerRows>(layer_id, shape, slots_, runner_);
    const auto place = [&](std::size_t s) { return rows->at(slots_[s]); };
    pass_->capture(place, layer_id == layer_ids_.back());
    return LayerRows::stream(rows);
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

  ModelRunner& runner_;
  const ModelConfig config_;
  std::vector<TokenSequence> sequences_;
  CalibrationData calibration_;
  Status& status_;
  std::vector<SequenceSlot> slots_;  // by sequence
  DType dtype_;
  std::vector<int> layer_ids_;
  std::unique_ptr<ModelPass> pass_;
  std::optional<LiveStates> states_;
};

}  // namespace

std::unique_ptr<LiveSource> open_live(ModelRunner& runner, std::vector<TokenSequence> sequences,
                                      const LiveOptions& options, Status& status) {
  return std::make_unique<Source>(runner, std::move(sequences), options, status);
}

}  // namespace oscar
