// SPDX-License-Identifier: MIT
// The plug-in behind decoder.hpp, in the order of operations of the reference implementation.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "model/decoder_torch/experts.hpp"
#include "model/decoder_torch/head.hpp"
#include "model/decoder_torch/link.hpp"
#include "model/layout.hpp"

namespace oscar {
namespace {

constexpr double kHiddenShare = 0.5;             // of a GPU's free memory, above which hidden states live on the host
constexpr std::int64_t kExpertBytes = 64 << 20;  // of experts that are loaded together
constexpr std::int64_t kGpuExpertBytes = 512 << 20;  // the same for a GPU
constexpr std::int64_t kTokensAtOnce = 8192;         // for experts: a few hundred each

const Weights& ours(const LoadedWeights& weights) { return static_cast<const Weights&>(weights); }
const QkvRows& qkv_of(const Rows& rows) { return static_cast<const QkvRows&>(rows); }

void copy_to(const at::Tensor& from, std::byte* to) {
  at::from_blob(to, from.sizes(), from.scalar_type()).copy_(from.contiguous(), /*non_blocking=*/true);
}

class TorchDecoder : public Decoder {
 public:
  TorchDecoder(ModelConfig config, const WeightStore& weights, const DecoderOptions& options)
      : config_(std::move(config)),
        store_(weights),
        device_(options.device, options.dtype),
        notice_(options.notice),
        hidden_on_host_(options.hidden_on_host) {
    call([&] { final_norm_.put("norm.weight", load_tensor(route_, kFinalNormName)); });
  }

  [[nodiscard]] std::string description() const override { return device_.description(); }
  [[nodiscard]] int concurrent_sequences() const override { return device_.is_gpu() ? 1 : 0; }
  [[nodiscard]] std::int64_t tokens_at_once() const override { return device_.is_gpu() ? kTokensAtOnce : 1; }
  [[nodiscard]] bool is_gpu() const override { return device_.is_gpu(); }

  [[nodiscard]] std::shared_ptr<std::byte> host_memory(std::size_t bytes) const override {
    return call([&] {
      const auto memory = std::make_shared<at::Tensor>(device_.host_bytes(static_cast<std::int64_t>(bytes)));
      return std::shared_ptr<std::byte>(memory, static_cast<std::byte*>(memory->data_ptr()));
    });
  }

  void make_room(std::int64_t num_tokens) override {
    const double wanted = static_cast<double>(num_tokens) * config_.hidden_size * c10::elementSize(device_.dtype());
    if (!device_.is_gpu() || hidden_on_host_) return;
    hidden_on_host_ = wanted > kHiddenShare * static_cast<double>(device_.free_bytes());
    hidden_bytes_ = hidden_on_host_ ? 0 : static_cast<std::size_t>(wanted);
    if (hidden_on_host_) notice_("hidden states live in the host's memory: the GPU has too little");
  }

  void finish() const override {
    if (device_.is_gpu()) device_.current_stream().synchronize();
  }

  [[nodiscard]] std::unique_ptr<Rows> embed(std::span<const std::int32_t> tokens) const override {
    return call([&] { return embedded(tokens); });
  }

  [[nodiscard]] Tensor copy_hidden(const Rows& hidden) const override {
    return call([&] { return host_copy(static_cast<const HiddenRows&>(hidden).x); });
  }

  [[nodiscard]] Tensor new_hidden_copy(std::size_t tokens) const override {
    return {device_.dtype() == at::kFloat ? DType::kF32 : DType::kBF16, hidden_shape(tokens)};
  }

  [[nodiscard]] std::unique_ptr<Rows> hidden_from(const TensorRef& copy, std::size_t tokens) const override {
    if (copy.shape != hidden_shape(tokens) || !is_activation_dtype(copy.dtype) ||
        scalar_type(copy.dtype) != device_.dtype()) {
      throw DataError("hidden states are not of these sequences on " + description(), config_.identity.id, "");
    }
    return call([&] {
      auto hidden = std::make_unique<HiddenRows>();
      keep(*hidden, from_host_copy(copy).to(device_.place()));
      return hidden;
    });
  }

  [[nodiscard]] std::string link_place() const override { return hidden_on_host_ ? "" : oscar::link_place(device_); }
  [[nodiscard]] std::string new_link_name() const override { return oscar::new_link_name(); }
  [[nodiscard]] std::unique_ptr<HiddenLink> open_link(const std::string& name, bool sends) const override {
    return oscar::open_link(device_, config_.hidden_size, name, sends);
  }

  [[nodiscard]] std::unique_ptr<LoadedWeights> load_layer(int layer) const override {
    return call([&] { return load_layer_weights(route_, layer); });
  }

  [[nodiscard]] std::vector<std::unique_ptr<LoadedWeights>> load_experts(int layer,
                                                                         std::span<const int> experts) const override {
    return call([&] { return load_expert_weights(route_, layer, experts); });
  }

  [[nodiscard]] int experts_at_once(int layer) const override {
    const std::int64_t at_once = (device_.is_gpu() ? kGpuExpertBytes : kExpertBytes) / expert_bytes(layer);
    return static_cast<int>(std::clamp<std::int64_t>(at_once, 1, experts_of(layer).count));
  }

  [[nodiscard]] bool holds_experts_of(int layer) const override {
    const auto all = static_cast<std::size_t>(expert_bytes(layer) * experts_of(layer).count);
    return device_.is_gpu() && device_.free_bytes() > 3 * all + hidden_bytes_;
  }

  [[nodiscard]] std::unique_ptr<Rows> project(const LoadedWeights& layer, const Rows& hidden) const override {
    return call([&] {
      auto rows = std::make_unique<QkvRows>();
      rows->qkv = project_attention(ours(layer), here(hidden));
      return rows;
    });
  }

  void copy_qkv(Rows& rows, const QkvBuffers& out) const override {
    call([&] {
      auto& own = static_cast<QkvRows&>(rows);
      const at::ScalarType type = scalar_type(out.dtype);
      own.converted = {own.qkv.q.to(type), own.qkv.k.to(type), own.qkv.v.to(type)};
      const auto finite = [](const at::Tensor& x) { return at::isfinite(x).all(); };
      own.finite = at::stack({finite(own.converted.q), finite(own.converted.k), finite(own.converted.v)});
      const SideStream side(device_, device_.copying_stream());
      copy_to(own.converted.q, out.q);
      copy_to(own.converted.k, out.k);
      copy_to(own.converted.v, out.v);
      own.copied = side.mark();
    });
  }

  [[nodiscard]] std::string finish_copy(Rows& rows) const override {
    return call([&] {
      auto& own = static_cast<QkvRows&>(rows);
      if (own.copied) own.copied->synchronize();
      const at::Tensor finite = own.finite.to(at::kCPU);
      own.converted = {};
      constexpr std::array<const char*, 3> kNames{"q", "k", "v"};
      for (std::size_t i = 0; i < kNames.size(); ++i) {
        if (!finite.data_ptr<bool>()[i]) return std::string(kNames[i]);
      }
      return std::string();
    });
  }

  void add_exact_attention(const LoadedWeights& layer, const Rows& rows, Rows& hidden) const override {
    call([&] {
      const at::Tensor x = here(hidden);
      keep(hidden, x + attention_output(ours(layer), exact_attention(ours(layer), qkv_of(rows).qkv), x));
    });
  }

  void add_attention(const LoadedWeights& layer, std::span<const float> attention, Rows& hidden) const override {
    call([&] {
      const MixerSpec& m = ours(layer).block().mixer;
      const at::Tensor x = here(hidden);
      keep(hidden, x + attention_output(ours(layer), take(attention, {x.size(0), m.num_heads, m.value_dim}), x));
    });
  }

  void add_recurrent(const LoadedWeights& layer, Rows& hidden) const override {
    call([&] {
      const at::Tensor x = here(hidden);
      keep(hidden, x + gated_delta(ours(layer), x));
    });
  }

  void add_mlp(const LoadedWeights& layer, Rows& hidden) const override {
    call([&] { keep(hidden, by_rows_(here(hidden), [&](const at::Tensor& x) { return after_mlp(ours(layer), x); })); });
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
        keep(*own, scaled(ours(layer), x + sum.narrow(0, begin, x.size(0)).to(x.scalar_type())));
        begin += x.size(0);
      }
    });
  }

  void logits(const Rows& hidden, std::span<float> logits) const override {
    call([&] { write_logits(route_, final_norm_.norm(here(hidden), "norm"), logits); });
  }

 private:
  [[nodiscard]] std::vector<std::int64_t> hidden_shape(std::size_t tokens) const {
    return {static_cast<std::int64_t>(tokens), config_.hidden_size};
  }

  [[nodiscard]] const ExpertsSpec& experts_of(int layer) const {
    return config_.blocks[static_cast<std::size_t>(layer)].mlp.experts;
  }
  /// Of one expert, unpacked.
  [[nodiscard]] std::int64_t expert_bytes(int layer) const {
    return std::int64_t{3} * experts_of(layer).intermediate * config_.hidden_size *
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

  [[nodiscard]] std::unique_ptr<Rows> embedded(std::span<const std::int32_t> tokens) const {
    const TensorRef& table = store_.at(kEmbeddingName);
    const auto count = static_cast<std::int64_t>(tokens.size());
    const std::size_t row_bytes = table.data.size() / static_cast<std::size_t>(table.shape[0]);
    const at::Tensor bytes = device_.host_bytes(count * static_cast<std::int64_t>(row_bytes));
    store_.read_rows(table, tokens, static_cast<std::byte*>(bytes.data_ptr()));
    const at::Tensor rows = bytes.view(scalar_type(table.dtype)).view({count, config_.hidden_size});
    const at::Tensor x = rows.to(device_.place()).to(device_.dtype());
    auto hidden = std::make_unique<HiddenRows>();
    keep(*hidden, config_.embedding_scale == 1 ? x : x * config_.embedding_scale);
    return hidden;
  }

  [[nodiscard]] at::Tensor here(const Rows& hidden) const {
    return static_cast<const HiddenRows&>(hidden).x.to(device_.place());
  }

  void keep(Rows& hidden, const at::Tensor& x) const {
    at::Tensor& own = static_cast<HiddenRows&>(hidden).x;
    if (!hidden_on_host_) {
      own = x;
    } else if (own.defined()) {
      own.copy_(x);
    } else {
      own = x.cpu();
    }
  }

  /// The caller's floats, in libtorch's own memory, whose alignment never changes: the matrix library picks its code by
  /// alignment, and results must not depend on where a caller's buffer happens to lie.
  [[nodiscard]] at::Tensor take(std::span<const float> values, at::IntArrayRef shape) const {
    at::Tensor tensor = at::empty(shape, at::kFloat);
    OSCAR_CHECK(static_cast<std::size_t>(tensor.numel()) == values.size());
    std::memcpy(tensor.data_ptr(), values.data(), values.size_bytes());
    return tensor.to(device_.place()).to(device_.dtype());
  }

  ModelConfig config_;
  const WeightStore& store_;
  Device device_;
  std::function<void(const std::string&)> notice_;
  RowBatches by_rows_{device_, notice_};
  WeightRoute route_{config_, store_, device_};
  Weights final_norm_{config_, config_.blocks.front()};
  bool hidden_on_host_;
  std::size_t hidden_bytes_ = 0;  // on a GPU
};

}  // namespace
}  // namespace oscar

extern "C" oscar::Decoder* oscar_make_decoder(const oscar::ModelConfig& config, const oscar::WeightStore& weights,
                                              const oscar::DecoderOptions& options) {
  return new oscar::TorchDecoder(config, weights, options);
}
