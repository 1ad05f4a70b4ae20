// SPDX-License-Identifier: MIT
#include "model/run/pass.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

/// Sequences whose attention is a hook's, on a GPU: their copies to the host and back wait for each other.
constexpr int kHookedAtOnce = 8;

/// q, k and v of one layer on their way to host memory. A sequence's copies are waited for once those of the next
/// sequence have begun, so that a GPU computes meanwhile.
class CapturedRows {
 public:
  struct Sequence {
    std::size_t index = 0;
    DType dtype = DType::kF32;  // of the copies
    std::unique_ptr<Rows> qkv;  // whose copies have begun
  };

  /// where: names the model and the layer in errors.
  CapturedRows(const Decoder& decoder, std::string where) : decoder_(decoder), where_(std::move(where)) {}
  /// Waits for copies that nobody has waited for, since an error came before.
  ~CapturedRows() {
    try {
      if (last_.qkv != nullptr) (void)decoder_.finish_copy(*last_.qkv);
    } catch (const std::exception&) {
      return;  // the error that came before is the one to be told
    }
  }
  CapturedRows(const CapturedRows&) = delete;
  CapturedRows& operator=(const CapturedRows&) = delete;

  /// Waits for the sequence that was added before. May be called concurrently. Throws DataError if that one has values
  /// which are not finite in the type of the copies.
  void add(Sequence sequence) {
    {
      const std::lock_guard lock(mutex_);
      std::swap(sequence, last_);
    }
    wait_for(sequence);
  }
  /// Waits for the sequence that was added last. Throws as add() does.
  void finish() { wait_for(std::exchange(last_, {})); }

 private:
  void wait_for(const Sequence& sequence) const {
    if (sequence.qkv == nullptr) return;
    const std::string what = decoder_.finish_copy(*sequence.qkv);
    if (what.empty()) return;
    throw DataError(what + " has values that are not finite in " + std::string(name_of(sequence.dtype)),
                    where_ + ", sequence " + std::to_string(sequence.index),
                    "check the checkpoint, or choose a wider type (--model-dtype; of a dump also --dtype)");
  }

  const Decoder& decoder_;
  std::string where_;
  std::mutex mutex_;
  Sequence last_;
};

class DecodedStates : public FinalStates {
 public:
  DecodedStates(const Decoder& decoder, std::vector<std::unique_ptr<Rows>> hidden)
      : decoder_(decoder), head_(decoder.load_head()), hidden_(std::move(hidden)) {}

  void logits(std::size_t sequence, std::span<float> out) const override {
    decoder_.logits(*head_, *hidden_.at(sequence), out);
  }
  void compare(std::size_t sequence, std::int64_t first, std::span<const std::int32_t> next,
               std::span<const FinalStates* const> others,
               std::span<const std::span<PositionFigures>> out) const override {
    std::vector<const Rows*> rows;
    for (const FinalStates* other : others) {
      rows.push_back(static_cast<const DecodedStates*>(other)->hidden_.at(sequence).get());
    }
    decoder_.compare(*head_, *hidden_.at(sequence), rows, first, next, out);
  }
  [[nodiscard]] int concurrent_calls() const override { return decoder_.concurrent_sequences(); }

 private:
  const Decoder& decoder_;
  std::shared_ptr<const LoadedWeights> head_;
  std::vector<std::unique_ptr<Rows>> hidden_;
};

}  // namespace

void check_sequences(std::span<const TokenSequence> sequences, std::span<const std::int64_t> first_positions,
                     const ModelConfig& config) {
  OSCAR_CHECK(first_positions.empty() || first_positions.size() == sequences.size());
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const std::string where = "sequence " + std::to_string(s);
    if (sequences[s].empty()) throw DataError("the sequence is empty", where, "leave it out");
    const std::int64_t first = first_positions.empty() ? 0 : first_positions[s];
    if (first + std::ssize(sequences[s]) > config.max_position_embeddings) {
      throw DataError("the sequence has " + plural(sequences[s].size(), "token") + ", the model's context is " +
                          std::to_string(config.max_position_embeddings),
                      where, "cut it with --seq-len");
    }
    for (std::size_t t = 0; t < sequences[s].size(); ++t) {
      const std::int32_t token = sequences[s][t];
      if (token >= 0 && token < config.vocab_size) continue;
      throw DataError(
          "token id " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(config.vocab_size),
          where + ", position " + std::to_string(t), "use token ids of this model's tokenizer");
    }
  }
}

Pass::Pass(Decoder& decoder, const Checkpoint& checkpoint, const ModelConfig& config,
           std::span<const TokenSequence> sequences, const PassOptions& options, Status& status)
    : decoder_(decoder),
      checkpoint_(checkpoint),
      config_(config),
      sequences_(sequences),
      layers_(options.layers),
      first_positions_(options.first_positions),
      status_(status),
      hidden_(sequences.size()) {
  check_sequences(sequences, options.first_positions, config);
  checkpoint_.stop_reads(false);
  choose_units();
  decoder_.make_room(tokens_);
  experts_.emplace(decoder_, config_, layers_, tokens_);
  if (!options.prepare || layers_ == 0 || units_.empty()) return;
  start_loading(layer_);
  preparing_ = std::async(std::launch::async, [this] { prepare(); });
}

/// After an error nobody needs the weights that are on their way.
Pass::~Pass() {
  if (std::uncaught_exceptions() > 0) checkpoint_.stop_reads(true);
}

void Pass::step(const AttentionHook& attention, bool observe_only) {
  const int at_once = decoder_.concurrent_sequences();
  run_layer(
      [&](std::size_t s, const LoadedWeights& weights) {
        attention ? attend_with_hook(s, weights, attention, observe_only) : (void)attend(s, weights, {}, observe_only);
      },
      observe_only, attention && at_once > 0 ? std::max(at_once, kHookedAtOnce) : at_once);
}

void Pass::capture(const CaptureHook& target, bool observe_only) {
  OSCAR_CHECK(block().has_cache());
  CapturedRows captured(decoder_, config_.identity.id + ", layer " + std::to_string(layer_));
  run_layer(
      [&](std::size_t s, const LoadedWeights& weights) {
        const QkvBuffers copy = target(s);
        captured.add({s, copy.dtype, attend(s, weights, copy, observe_only)});
      },
      observe_only, decoder_.concurrent_sequences());
  captured.finish();
}

void Pass::save(const std::filesystem::path& path) const {
  std::vector<std::pair<std::string, Tensor>> states;
  for (const auto& rows : hidden_) states.emplace_back(std::to_string(states.size()), decoder_.copy_hidden(*rows));
  write_safetensors(path, states, {{"layer", std::to_string(layer_)}}, Checksums::kYes);
}

void Pass::restore(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  const auto layer = file.metadata().find("layer");
  const int behind = layer == file.metadata().end() ? 0 : std::atoi(layer->second.c_str());
  if (behind <= 0 || behind >= config_.num_layers || file.tensors().size() != sequences_.size()) {
    throw DataError("these are not hidden states of this model and these sequences", path.string(), "");
  }
  if (!file.has_checksums()) throw DataError("the hidden states have no checksums", path.string(), "");
  file.verify_all();
  std::vector<std::unique_ptr<Rows>> hidden;
  for (std::size_t s = 0; s < sequences_.size(); ++s) {
    hidden.push_back(decoder_.hidden_from(file.at(std::to_string(s)), sequences_[s], first_position(s)));
  }
  decoder_.finish();
  if (preparing_.valid()) preparing_.wait();  // of a layer that need not be there any more
  preparing_ = {};
  hidden_ = std::move(hidden);
  layer_ = behind;
  next_ = {};
  experts_->drop();
}

std::unique_ptr<FinalStates> Pass::final_states() {
  OSCAR_CHECK(layer_ == config_.num_layers && !ended_);
  ended_ = true;
  return std::make_unique<DecodedStates>(decoder_, std::move(hidden_));
}

void Pass::in_parallel(std::size_t count, const std::function<void(std::size_t)>& task, int at_once) const {
  parallel_for(
      count,
      [&](std::size_t i) {
        throw_if_interrupted();
        task(i);
      },
      at_once);
}

void Pass::choose_units() {
  std::int64_t tokens = 0;
  for (std::size_t s = 0; s < sequences_.size(); ++s) {
    if (tokens == 0) units_.push_back({s, s});
    units_.back().end = s + 1;
    tokens += static_cast<std::int64_t>(sequences_[s].size());
    tokens_ += static_cast<std::int64_t>(sequences_[s].size());
    if (tokens >= decoder_.tokens_at_once()) tokens = 0;
  }
}

/// Of the layer that runs.
void Pass::tell_progress(std::int64_t tokens) {
  status_.model_progress({tokens_, layers_, layer_ * tokens_ + tokens, checkpoint_.bytes_read()});
}

void Pass::start_loading(int layer) {
  next_ = std::async(std::launch::async, [this, layer] { return decoder_.load_layer(layer); });
}

/// Takes the first sequences through the first layer for nothing: a GPU loads kernels and finds memory on first use.
void Pass::prepare() {
  const std::shared_ptr<const LoadedWeights> weights = std::shared_future(next_).get();
  if (!decoder_.is_gpu() || (block().attends() && !block().has_cache())) return;  // there is nothing to attend to yet
  const Unit& unit = units_.front();
  for (std::size_t s = unit.begin; s < unit.end; ++s) {
    hidden_[s] = decoder_.embed(sequences_[s], first_position(s));
    block().attends() ? (void)attend(s, *weights, {}, false) : decoder_.add_recurrent(*weights, *hidden_[s]);
    if (block().mlp.experts.count == 0) decoder_.add_mlp(*weights, *hidden_[s]);
  }
  if (block().mlp.experts.count > 0) experts_->try_out(layer_, *weights, hidden_of(unit));
  decoder_.finish();
  for (std::size_t s = unit.begin; s < unit.end; ++s) hidden_[s].reset();
}

void Pass::wait_until_ready() {
  if (preparing_.valid()) preparing_.get();
}

void Pass::run_layer(const Mixer& mix, bool observe_only, int at_once) {
  OSCAR_CHECK(layer_ < layers_);
  throw_if_interrupted();
  wait_until_ready();
  const int after = observe_only ? layers_ : layer_ + 1;
  if (units_.empty()) {
    layer_ = after;
    return;
  }
  if (!next_.valid()) start_loading(layer_);
  if (layer_ == 0) {
    in_parallel(
        sequences_.size(), [&](std::size_t s) { hidden_[s] = decoder_.embed(sequences_[s], first_position(s)); }, 0);
  }
  tell_progress(0);
  const std::shared_ptr<const LoadedWeights> weights = next_.get();
  next_ = {};
  if (after < layers_) start_loading(after);
  const bool experts = !observe_only && block().mlp.experts.count > 0;
  if (observe_only) experts_->drop();  // they were loaded ahead
  experts_->load_early(layer_, experts);
  std::atomic<std::int64_t> passed{0};
  const auto take = [&](std::size_t s) {
    block().attends() ? mix(s, *weights) : decoder_.add_recurrent(*weights, *hidden_[s]);
    if (!observe_only && !experts) decoder_.add_mlp(*weights, *hidden_[s]);
    passed += static_cast<std::int64_t>(sequences_[s].size());
    tell_progress(experts ? passed / 2 : passed.load());
  };
  in_parallel(sequences_.size(), take, at_once);
  if (experts) run_experts(*weights);
  decoder_.finish();  // or the weights would go while a GPU computes with them
  if (experts) experts_->next_layer();
  layer_ = after;
  ended_ = observe_only;
}

void Pass::run_experts(const LoadedWeights& weights) {
  std::vector<LayerExperts::Unit> units;
  for (const Unit& unit : units_) units.push_back(hidden_of(unit));
  const auto for_each = [&](std::size_t count, const std::function<void(std::size_t)>& task) {
    in_parallel(count, task, decoder_.concurrent_sequences());
  };
  const auto done = [&](std::size_t i, std::size_t groups) {
    tell_progress(tokens_ / 2 +
                  (tokens_ - tokens_ / 2) * static_cast<std::int64_t>(i) / static_cast<std::int64_t>(groups));
  };
  experts_->run(layer_, weights, units, for_each, done);
}

std::unique_ptr<Rows> Pass::attend(std::size_t s, const LoadedWeights& weights, const std::optional<QkvBuffers>& copy,
                                   bool observe_only) {
  if (!copy && observe_only) return nullptr;
  std::unique_ptr<Rows> qkv = decoder_.project(weights, *hidden_[s]);
  if (copy) decoder_.copy_qkv(*qkv, *copy);
  if (!observe_only) decoder_.add_exact_attention(weights, *qkv, *hidden_[s]);
  return qkv;
}

void Pass::attend_with_hook(std::size_t s, const LoadedWeights& weights, const AttentionHook& attention,
                            bool observe_only) {
  const MixerSpec& m = block().mixer;
  const auto tokens = static_cast<std::int64_t>(sequences_[s].size());
  const std::int64_t q_size = tokens * m.num_heads * m.head_dim, k_size = tokens * m.num_kv_heads * m.head_dim;
  const std::int64_t v_size = tokens * m.num_kv_heads * m.value_dim, out_size = tokens * m.num_heads * m.value_dim;
  const auto size = static_cast<std::size_t>(q_size + k_size + v_size + out_size);
  const std::shared_ptr<std::byte> memory = decoder_.host_memory(size * sizeof(float));
  std::span<float> rest(reinterpret_cast<float*>(memory.get()), size);
  const auto next = [&](std::int64_t count) {
    const std::span<float> part = rest.first(static_cast<std::size_t>(count));
    rest = rest.subspan(part.size());
    return part;
  };
  const std::span<float> q = next(q_size), k = next(k_size), v = next(v_size), out = next(out_size);
  const std::unique_ptr<Rows> own = decoder_.project(weights, *hidden_[s]);
  const auto bytes = [](std::span<float> values) { return reinterpret_cast<std::byte*>(values.data()); };
  decoder_.copy_qkv(*own, {DType::kF32, bytes(q), bytes(k), bytes(v)});
  (void)decoder_.finish_copy(*own);
  const QkvView qkv{heads_view(q, tokens, m.num_heads, m.head_dim), heads_view(k, tokens, m.num_kv_heads, m.head_dim),
                    heads_view(v, tokens, m.num_kv_heads, m.value_dim)};
  const bool replaced = attention(layer_, s, qkv, out);
  if (observe_only) return;
  if (replaced) return decoder_.add_attention(weights, out, *hidden_[s]);
  decoder_.add_exact_attention(weights, *own, *hidden_[s]);
}

}  // namespace oscar
