// SPDX-License-Identifier: MIT
// The plug-in behind decoder.hpp, in the order of operations of the reference implementation.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "base/errors.hpp"
#include "model/torch/ends.hpp"
#include "model/torch/gradients.hpp"
#include "model/torch/rows.hpp"

namespace oscar {
namespace {

constexpr std::int64_t kExpertBytes = 64 << 20;      // of experts that are loaded together
constexpr std::int64_t kGpuExpertBytes = 512 << 20;  // the same for a GPU
constexpr std::int64_t kTokensAtOnce = 8192;         // for experts: a few hundred each

class TorchDecoder : public Decoder {
 public:
  TorchDecoder(ModelConfig config, const WeightStore& weights, const DecoderOptions& options)
      : config_(std::move(config)),
        store_(weights),
        device_(options.device, options.dtype, options.notice),
        by_rows_(device_, options.notice),
        home_(device_, options.hidden_on_host, options.notice) {}

  [[nodiscard]] std::string description() const override { return device_.description(); }
  [[nodiscard]] int concurrent_sequences() const override { return device_.is_gpu() ? 1 : 0; }
  [[nodiscard]] int concurrent_gradients() const override {
    if (!device_.is_gpu()) return 0;
    return device_.has_much_room() ? 3 : 1;
  }
  [[nodiscard]] std::int64_t tokens_at_once() const override { return device_.is_gpu() ? kTokensAtOnce : 1; }
  [[nodiscard]] bool is_gpu() const override { return device_.is_gpu(); }

  [[nodiscard]] std::shared_ptr<std::byte> host_memory(std::size_t bytes) const override {
    return call([&] {
      const auto memory = std::make_shared<at::Tensor>(device_.host_bytes(static_cast<std::int64_t>(bytes)));
      return std::shared_ptr<std::byte>(memory, static_cast<std::byte*>(memory->data_ptr()));
    });
  }

  void make_room(std::int64_t num_tokens) override {
    const std::int64_t width = state_width(config_) + (config_.blocks.front().input_dim > 0 ? config_.hidden_size : 0);
    home_.make_room(static_cast<double>(num_tokens * width) * c10::elementSize(device_.dtype()));
  }

  void finish() const override {
    if (device_.is_gpu()) device_.current_stream().synchronize();
  }

  [[nodiscard]] std::unique_ptr<Rows> embed(std::span<const std::int32_t> tokens,
                                            std::int64_t first_position) const override {
    return call([&] {
      auto hidden = std::make_unique<HiddenRows>();
      hidden->first_position = first_position;
      const at::Tensor x = embedded(route_, tokens);
      keep(*hidden, x);
      remember(*hidden, tokens, x);
      return hidden;
    });
  }

  [[nodiscard]] Tensor copy_hidden(const Rows& hidden) const override {
    return call([&] { return host_copy(packed_state(config_, state_of(hidden))); });
  }

  [[nodiscard]] std::unique_ptr<Rows> hidden_from(const TensorRef& copy, std::span<const std::int32_t> tokens,
                                                  std::int64_t first_position) const override {
    const std::vector<std::int64_t> shape{std::ssize(tokens), state_width(config_)};
    if (copy.shape != shape || !is_activation_dtype(copy.dtype) || scalar_type(copy.dtype) != device_.dtype()) {
      throw DataError("hidden states are not of these sequences on " + description(), config_.identity.id, "");
    }
    return call([&] {
      auto hidden = std::make_unique<HiddenRows>();
      hidden->first_position = first_position;
      const at::Tensor state = from_host_copy(copy);
      unpack_state(config_, home_.on_host() ? state : state.to(device_.place()), *hidden);
      if (config_.blocks.front().input_dim > 0) remember(*hidden, tokens, embedded(route_, tokens));
      return hidden;
    });
  }

  [[nodiscard]] std::shared_ptr<const LoadedWeights> load_layer(int layer) const override {
    return shared(layer, [&] { return load_layer_weights(route_, layer); });
  }

  [[nodiscard]] std::vector<std::unique_ptr<LoadedWeights>> load_experts(int layer,
                                                                         std::span<const int> experts) const override {
    return call([&] { return load_expert_weights(route_, layer, experts); });
  }

  [[nodiscard]] int experts_at_once(int layer) const override {
    const std::int64_t at_once = (device_.is_gpu() ? kGpuExpertBytes : kExpertBytes) / expert_bytes(layer);
    return static_cast<int>(std::clamp<std::int64_t>(at_once, 1, config_.block(layer).mlp.experts.count));
  }

  [[nodiscard]] std::unique_ptr<Rows> project(const LoadedWeights& layer, Rows& hidden) const override {
    return call([&] {
      auto rows = std::make_unique<QkvRows>();
      if (ours(layer).block().parallel) state_of(hidden).before = home_.resting(here(hidden));
      auto& [q, k, v] = rows->qkv = project_attention(ours(layer), here(hidden), state_of(hidden).first_position);
      const MixerSpec& m = ours(layer).block().mixer;
      if (m.kv_layer < 0) return rows;
      Projected& kept = state_of(hidden).kept[m.kv_layer];
      if (m.own_kv) {
        kept = {{}, home_.resting(k), home_.resting(v)};
      } else {
        k = kept.k.to(device_.place()), v = kept.v.to(device_.place());
      }
      return rows;
    });
  }

  void copy_qkv(Rows& rows, const QkvBuffers& out) const override {
    call([&] { start_copy(device_, static_cast<QkvRows&>(rows), out); });
  }

  [[nodiscard]] std::string finish_copy(Rows& rows) const override {
    return call([&] { return oscar::finish_copy(static_cast<QkvRows&>(rows)); });
  }

  void add_exact_attention(const LoadedWeights& layer, const Rows& rows, Rows& hidden) const override {
    call([&] {
      const at::Tensor x = here(hidden);
      keep(hidden,
           x + attention_output(ours(layer), exact_attention(ours(layer), static_cast<const QkvRows&>(rows).qkv), x));
    });
  }

  void add_attention(const LoadedWeights& layer, std::span<const float> attention, Rows& hidden) const override {
    call([&] {
      const MixerSpec& m = ours(layer).block().mixer;
      const at::Tensor x = here(hidden);
      const at::Tensor out = floats_on(x.device(), attention, {x.size(0), m.num_heads, m.value_dim});
      keep(hidden, x + attention_output(ours(layer), out.to(x.scalar_type()), x));
    });
  }

  void add_recurrent(const LoadedWeights& layer, Rows& hidden) const override {
    call([&] {
      const at::Tensor x = here(hidden);
      keep(hidden, x + gated_delta(ours(layer), x));
    });
  }

  void add_mlp(const LoadedWeights& layer, Rows& hidden) const override {
    call([&] {
      const at::Tensor x = here(hidden);
      const at::Tensor read = ours(layer).block().parallel ? state_of(hidden).before.to(device_.place()) : x;
      const at::Tensor added = by_rows_(read, [&](const at::Tensor& rows) { return dense_mlp(ours(layer), rows); });
      state_of(hidden).before = at::Tensor();
      keep(hidden, left_behind(route_, ours(layer), x + added, state_of(hidden)));
    });
  }

  [[nodiscard]] std::unique_ptr<Rows> route(const LoadedWeights& layer,
                                            std::span<const Rows* const> hidden) const override {
    return call([&] {
      std::vector<at::Tensor> parts;
      for (const Rows* rows : hidden) parts.push_back(here(*rows));
      return route_rows(ours(layer), parts.size() == 1 ? parts.front() : at::cat(parts), by_rows_);
    });
  }

  [[nodiscard]] std::vector<int> chosen_experts(const Rows& routed) const override {
    return static_cast<const RoutedRows&>(routed).slots.chosen();
  }

  void add_expert(const LoadedWeights& layer, int expert, const LoadedWeights& weights, Rows& routed) const override {
    call([&] { add_to_sum(ours(layer), expert, ours(weights), by_rows_, static_cast<RoutedRows&>(routed)); });
  }

  void add_experts_sum(const LoadedWeights& layer, const Rows& rows, std::span<Rows* const> hidden) const override {
    call([&] {
      const at::Tensor sum = whole_sum(ours(layer), static_cast<const RoutedRows&>(rows));
      std::int64_t begin = 0;
      for (Rows* own : hidden) {
        const at::Tensor x = here(*own);
        const at::Tensor added = sum.narrow(0, begin, x.size(0)).to(x.scalar_type());
        keep(*own, left_behind(route_, ours(layer), x + added, state_of(*own)));
        begin += x.size(0);
      }
    });
  }

  [[nodiscard]] std::shared_ptr<const LoadedWeights> load_head() const override {
    return shared(kHead, [&] { return load_head_weights(route_); });
  }

  void logits(const LoadedWeights& head, const Rows& hidden, std::span<float> logits) const override {
    call([&] { write_logits(ours(head), here(hidden), logits); });
  }

  void compare(const LoadedWeights& head, const Rows& exact, std::span<const Rows* const> others, std::int64_t first,
               std::span<const std::int32_t> next, std::span<const std::span<PositionFigures>> out) const override {
    call([&] {
      const auto rows = [&](const Rows& of) {
        return state_of(of).x.narrow(0, first, static_cast<std::int64_t>(next.size())).to(device_.place());
      };
      const at::Tensor own = rows(exact);
      std::vector<at::Tensor> states;
      for (const Rows* other : others) states.push_back(other == &exact ? own : rows(*other));
      compare_predictions(ours(head), own, states, next, out);
    });
  }

  [[nodiscard]] std::unique_ptr<Rows> behind(const LoadedWeights& layer, Experts experts,
                                             const Rows& before) const override {
    return call([&] {
      std::unique_ptr<HiddenRows> next = behind_layer(route_, ours(layer), experts, by_rows_, state_of(before));
      home_.put_aside(*next);
      return next;
    });
  }

  [[nodiscard]] std::unique_ptr<Rows> kept_for_gradients(const Rows& hidden) const override {
    return call([&] { return oscar::kept_for_gradients(state_of(hidden)); });
  }

  [[nodiscard]] std::vector<std::unique_ptr<Rows>> likelihood_gradients(
      const LoadedWeights& head, const Rows& hidden, std::span<const std::vector<float>> draws) const override {
    return call([&] {
      std::vector<std::unique_ptr<Rows>> gradients;
      for (const at::Tensor& found : oscar::likelihood_gradients(ours(head), here(hidden), draws)) {
        auto own = std::make_unique<HiddenRows>();
        own->x = found;
        gradients.push_back(std::move(own));
      }
      return gradients;
    });
  }

  void pull_back(const LoadedWeights& layer, Experts experts, const Rows& before,
                 std::span<const std::unique_ptr<Rows>> gradients, Windows windows,
                 std::span<const HistoryBuffers> out) const override {
    call([&] {
      std::vector<HiddenRows*> own;
      for (const auto& gradient : gradients) own.push_back(&state_of(*gradient));
      const std::vector<CacheGradients> found =
          oscar::pull_back(route_, ours(layer), experts, by_rows_, state_of(before), own, windows);
      for (std::size_t i = 0; i < found.size(); ++i) {
        write_floats(found[i].key, out[i].key);
        write_floats(found[i].value, out[i].value);
      }
    });
  }

 private:
  /// What load() gives, or gave before and somebody still holds: with much room this decoder does. May be called
  /// concurrently.
  template <class F>
  [[nodiscard]] std::shared_ptr<const LoadedWeights> shared(int part, const F& load) const {
    const std::lock_guard lock(shared_mutex_);
    if (auto held = shared_[part].lock()) return held;
    const std::shared_ptr<const LoadedWeights> loaded = call(load);
    shared_[part] = loaded;
    if (device_.has_much_room()) kept_.push_back(loaded);
    return loaded;
  }

  /// Of one expert, unpacked.
  [[nodiscard]] std::int64_t expert_bytes(int layer) const {
    return std::int64_t{3} * config_.block(layer).mlp.experts.intermediate * config_.hidden_size *
           static_cast<std::int64_t>(c10::elementSize(device_.dtype()));
  }

  /// f, with what every call needs around it.
  template <class F>
  auto call(F&& f) const -> decltype(f()) {
    const CallGuard guard(device_);
    try {
      return f();
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
      throw IoError("there is not enough memory on " + device_.place().str() + " to take a sequence through a layer",
                    config_.identity.id, "cut sequences shorter with --seq-len, or use another --device");
    }
  }

  /// What later layers make their inputs of. embedding: as embedded() has it.
  void remember(HiddenRows& hidden, std::span<const std::int32_t> tokens, const at::Tensor& embedding) const {
    if (config_.blocks.front().input_dim == 0) return;
    hidden.tokens.assign(tokens.begin(), tokens.end());
    hidden.embedding = home_.resting(embedding);
  }

  [[nodiscard]] at::Tensor here(const Rows& hidden) const { return home_.here(hidden); }
  void keep(Rows& hidden, const at::Tensor& x) const { home_.keep(hidden, x); }

  ModelConfig config_;
  const WeightStore& store_;
  Device device_;
  RowBatches by_rows_;
  HiddenHome home_;
  WeightRoute route_{config_, store_, device_};
  static constexpr int kHead = -1;
  mutable std::mutex shared_mutex_;
  mutable std::map<int, std::weak_ptr<const LoadedWeights>> shared_;  // by layer, and the head
  mutable std::vector<std::shared_ptr<const LoadedWeights>> kept_;
};

}  // namespace
}  // namespace oscar

extern "C" oscar::Decoder* oscar_make_decoder(const oscar::ModelConfig& config, const oscar::WeightStore& weights,
                                              const oscar::DecoderOptions& options) {
  return new oscar::TorchDecoder(config, weights, options);
}
