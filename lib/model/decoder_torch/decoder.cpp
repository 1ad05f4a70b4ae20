// SPDX-License-Identifier: MIT
// The plug-in behind decoder.hpp, in fp32, in the order of operations of the reference implementation.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tanh.h>

#include <algorithm>

#include "model/decoder_torch/layer_math.hpp"
#include "model/decoder_torch/tensors.hpp"
#include "model/layout.hpp"

namespace oscar {
namespace {

constexpr std::int64_t kHeadBlock = 8192;  // rows of the output head that are held in fp32 at a time

const Weights& ours(const LoadedWeights& weights) { return static_cast<const Weights&>(weights); }

class TorchDecoder : public Decoder {
 public:
  TorchDecoder(ModelConfig config, const WeightStore& weights) : config_(std::move(config)), store_(weights) {
    const CallGuard guard;
    final_norm_.put("norm.weight", load_tensor(weights, kFinalNormName));
  }

  void embed(std::span<const std::int32_t> tokens, std::span<float> hidden) const override {
    const CallGuard guard;
    const TensorRef& table = store_.at(kEmbeddingName);
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const at::Tensor row = load_rows(table, tokens[t], tokens[t] + 1);
      const auto width = static_cast<std::size_t>(config_.hidden_size);
      give(config_.embedding_scale == 1 ? row : row * config_.embedding_scale, hidden.subspan(t * width, width));
    }
  }

  [[nodiscard]] std::unique_ptr<LoadedWeights> load_layer(int layer) const override {
    const CallGuard guard;
    return load_layer_weights(config_, store_, layer);
  }

  [[nodiscard]] std::unique_ptr<LoadedWeights> load_expert(int layer, int expert) const override {
    const CallGuard guard;
    return load_expert_weights(config_, store_, layer, expert);
  }

  void project(const LoadedWeights& layer, std::span<const float> hidden, std::span<float> q, std::span<float> k,
               std::span<float> v) const override {
    const CallGuard guard;
    const Projected out = project_attention(ours(layer), rows(hidden));
    give(out.q, q);
    give(out.k, k);
    give(out.v, v);
  }

  void attend(const LoadedWeights& layer, const QkvView& qkv, std::span<float> out) const override {
    const CallGuard guard;
    give(exact_attention(ours(layer), {take(qkv.q), take(qkv.k), take(qkv.v)}), out);
  }

  void add_attention(const LoadedWeights& layer, std::span<const float> attention,
                     std::span<float> hidden) const override {
    const CallGuard guard;
    const MixerSpec& m = ours(layer).block().mixer;
    const at::Tensor x = rows(hidden);
    give(x + attention_output(ours(layer), take(attention, {x.size(0), m.num_heads, m.value_dim}), x), hidden);
  }

  void add_recurrent(const LoadedWeights& layer, std::span<float> hidden) const override {
    const CallGuard guard;
    const at::Tensor x = rows(hidden);
    give(x + gated_delta(ours(layer), x), hidden);
  }

  void add_mlp(const LoadedWeights& layer, std::span<float> hidden) const override {
    const CallGuard guard;
    const at::Tensor x = rows(hidden);
    give(x + dense_mlp(ours(layer), x), hidden);
  }

  [[nodiscard]] Routing route(const LoadedWeights& layer, std::span<const float> hidden,
                              std::span<float> sum) const override {
    const CallGuard guard;
    const at::Tensor normed = ours(layer).norm(rows(hidden), ours(layer).block().mlp_norm);
    const Chosen chosen = choose_experts(ours(layer), normed);
    give(shared_experts(ours(layer), normed), sum);
    const at::Tensor experts = chosen.experts.to(at::kInt).contiguous(), weights = chosen.weights.contiguous();
    const auto* e = experts.data_ptr<std::int32_t>();
    const auto* w = weights.data_ptr<float>();
    return {{e, e + experts.numel()}, {w, w + weights.numel()}};
  }

  void add_expert(const LoadedWeights& layer, int expert, const LoadedWeights& weights, const Routing& routing,
                  std::span<const float> hidden, std::span<float> sum) const override {
    const CallGuard guard;
    const auto width = static_cast<std::size_t>(config_.hidden_size);
    const auto top_k = static_cast<std::size_t>(ours(layer).block().mlp.experts.top_k);
    std::vector<std::size_t> slots;
    for (std::size_t i = 0; i < routing.experts.size(); ++i) {
      if (routing.experts[i] == expert) slots.push_back(i);
    }
    if (slots.empty()) return;
    const at::Tensor x = at::empty({static_cast<std::int64_t>(slots.size()), config_.hidden_size}, at::kFloat);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      std::copy_n(&hidden[slots[i] / top_k * width], width, x.data_ptr<float>() + i * width);
    }
    const at::Tensor normed = ours(layer).norm(x, ours(layer).block().mlp_norm);
    const at::Tensor y = routed_expert(ours(layer), ours(weights), normed).contiguous();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const float weight = routing.weights[slots[i]];
      const float* from = y.data_ptr<float>() + i * width;
      float* to = &sum[slots[i] / top_k * width];
      for (std::size_t c = 0; c < width; ++c) to[c] += from[c] * weight;
    }
  }

  void add_experts_sum(const LoadedWeights& layer, std::span<const float> sum, std::span<float> hidden) const override {
    const CallGuard guard;
    give(rows(hidden) + ours(layer).norm(rows(sum), ours(layer).block().mlp_out_norm), hidden);
  }

  void logits(std::span<const float> hidden, std::span<float> logits) const override {
    const CallGuard guard;
    const at::Tensor normed = final_norm_.norm(rows(hidden), "norm");
    const TensorRef& head = store_.at(head_weight_name(config_));
    const std::int64_t vocab = head.shape[0];
    OSCAR_CHECK(logits.size() == static_cast<std::size_t>(normed.size(0) * vocab));
    const at::Tensor out = at::from_blob(logits.data(), {normed.size(0), vocab}, at::kFloat);
    for (std::int64_t begin = 0; begin < vocab; begin += kHeadBlock) {
      const std::int64_t end = std::min(vocab, begin + kHeadBlock);
      out.narrow(1, begin, end - begin).copy_(at::linear(normed, load_rows(head, begin, end)));
    }
    const double cap = config_.logit_soft_cap;
    if (cap > 0) out.div_(cap).tanh_().mul_(cap);
  }

 private:
  [[nodiscard]] at::Tensor rows(std::span<const float> hidden) const { return take_rows(hidden, config_.hidden_size); }

  ModelConfig config_;
  const WeightStore& store_;
  Weights final_norm_{config_, config_.blocks.front()};
};

}  // namespace
}  // namespace oscar

extern "C" oscar::Decoder* oscar_make_decoder(const oscar::ModelConfig& config, const oscar::WeightStore& weights) {
  return new oscar::TorchDecoder(config, weights);
}
