// SPDX-License-Identifier: MIT
// The plug-in behind decoder.hpp: Qwen3 (dense) in fp32, in the order of operations of the reference implementation.
// Every call runs on the caller's thread alone. Operands live in libtorch's own memory, whose alignment never changes:
// the matrix library picks its code by alignment, and results must not depend on where a caller's buffer happens to
// lie.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "model/layout.hpp"

namespace oscar {
namespace {

constexpr std::int64_t kHeadBlock = 8192;  // rows of the output head that are held in fp32 at a time

/// What every call needs: no gradients, no helper threads.
struct CallGuard {
  CallGuard() {
    thread_local const bool once = (at::set_num_threads(1), true);
    (void)once;
  }
  c10::InferenceMode inference;
};

at::ScalarType scalar_type(DType dtype) {
  OSCAR_CHECK(is_activation_dtype(dtype));
  return dtype == DType::kF32 ? at::kFloat : dtype == DType::kBF16 ? at::kBFloat16 : at::kHalf;
}

/// Rows [begin, end) of a checkpoint tensor as fp32. The file's bytes need not be aligned.
at::Tensor load_rows(const TensorRef& weight, std::int64_t begin, std::int64_t end) {
  const std::size_t row_bytes = weight.data.size() / static_cast<std::size_t>(weight.shape[0]);
  std::vector<std::int64_t> shape = weight.shape;
  shape[0] = end - begin;
  at::Tensor stored = at::empty(shape, scalar_type(weight.dtype));
  std::memcpy(stored.data_ptr(), weight.data.data() + static_cast<std::size_t>(begin) * row_bytes,
              static_cast<std::size_t>(end - begin) * row_bytes);
  return stored.to(at::kFloat);
}

at::Tensor load(const TensorRef& weight) { return load_rows(weight, 0, weight.shape[0]); }

/// A copy of the caller's floats.
at::Tensor take(std::span<const float> values, at::IntArrayRef shape) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  OSCAR_CHECK(static_cast<std::size_t>(tensor.numel()) == values.size());
  std::memcpy(tensor.data_ptr(), values.data(), values.size_bytes());
  return tensor;
}

at::Tensor take(const HeadsView& rows) {
  const std::size_t count = static_cast<std::size_t>(rows.num_tokens) * rows.num_heads * rows.head_dim;
  OSCAR_CHECK(rows.dtype == DType::kF32);
  return take({reinterpret_cast<const float*>(rows.data), count}, {rows.num_tokens, rows.num_heads, rows.head_dim});
}

void give(const at::Tensor& tensor, std::span<float> out) {
  OSCAR_CHECK(static_cast<std::size_t>(tensor.numel()) == out.size());
  at::from_blob(out.data(), tensor.sizes(), at::kFloat).copy_(tensor);
}

/// x / sqrt(mean(x^2) + eps) * weight over the last dimension.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return weight * (x * at::rsqrt(x.pow(2).mean(-1, true) + eps));
}

struct LayerWeights {
  at::Tensor input_norm, q, k, v, q_norm, k_norm, o, mlp_norm, gate, up, down;
};

class TorchDecoder : public Decoder {
 public:
  TorchDecoder(ModelConfig config, const WeightStore& weights) : config_(std::move(config)), weights_(weights) {
    const CallGuard guard;
    final_norm_ = load(weights.at(kFinalNormName));
  }

  void embed(std::span<const std::int32_t> tokens, std::span<float> hidden) const override {
    const CallGuard guard;
    const TensorRef& table = weights_.at(kEmbeddingName);
    const std::size_t row_bytes = table.data.size() / static_cast<std::size_t>(config_.vocab_size);
    const auto count = static_cast<std::int64_t>(tokens.size());
    const at::Tensor rows = at::empty({count, config_.hidden_size}, scalar_type(table.dtype));
    auto* out = static_cast<std::byte*>(rows.data_ptr());
    for (const std::int32_t token : tokens) {
      std::memcpy(out, table.data.data() + static_cast<std::size_t>(token) * row_bytes, row_bytes);
      out += row_bytes;
    }
    give(rows.to(at::kFloat), hidden);
  }

  void load_layer(int layer) override {
    const CallGuard guard;
    weights_of_layer_ = {};  // frees the layer before
    const auto get = [&](const char* part) { return load(weights_.at(layer_weight_name(layer, part))); };
    weights_of_layer_ = {
        get("input_layernorm"),  get("self_attn.q_proj"), get("self_attn.k_proj"), get("self_attn.v_proj"),
        get("self_attn.q_norm"), get("self_attn.k_norm"), get("self_attn.o_proj"), get("post_attention_layernorm"),
        get("mlp.gate_proj"),    get("mlp.up_proj"),      get("mlp.down_proj")};
    loaded_ = layer;
  }

  void project(int layer, std::span<const float> hidden, std::span<float> q, std::span<float> k,
               std::span<float> v) const override {
    const CallGuard guard;
    const LayerWeights& w = loaded(layer);
    const at::Tensor normed = rms_norm(take_hidden(hidden), w.input_norm, config_.rms_norm_eps);
    const auto heads = [&](const at::Tensor& weight, int count) {
      return at::linear(normed, weight).view({normed.size(0), count, config_.head_dim});
    };
    const auto [cosine, sine] = rope_tables(normed.size(0));
    const auto rotate = [&, cos = cosine, sin = sine](const at::Tensor& x, const at::Tensor& norm) {
      const at::Tensor y = rms_norm(x, norm, config_.rms_norm_eps);
      const std::int64_t half = config_.head_dim / 2;
      const at::Tensor turned = at::cat({-y.narrow(-1, half, half), y.narrow(-1, 0, half)}, -1);
      return y * cos + turned * sin;
    };
    give(rotate(heads(w.q, config_.num_attention_heads), w.q_norm), q);
    give(rotate(heads(w.k, config_.num_key_value_heads), w.k_norm), k);
    give(heads(w.v, config_.num_key_value_heads), v);
  }

  void attend(const QkvView& qkv, std::span<float> out) const override {
    const CallGuard guard;
    const at::Tensor q = take(qkv.q), k = take(qkv.k), v = take(qkv.v);
    at::Tensor result = at::empty(q.sizes(), at::kFloat);
    const std::int64_t group = q.size(1) / k.size(1);
    const auto head = [](const at::Tensor& x, std::int64_t h) { return x.select(1, h).unsqueeze(0).unsqueeze(0); };
    for (std::int64_t h = 0; h < q.size(1); ++h) {
      const at::Tensor o = at::scaled_dot_product_attention(head(q, h), head(k, h / group), head(v, h / group), {}, 0.0,
                                                            /*is_causal=*/true);
      result.select(1, h).copy_(o.squeeze(0).squeeze(0));
    }
    give(result, out);
  }

  void finish_layer(int layer, std::span<const float> attention, std::span<float> hidden) const override {
    const CallGuard guard;
    const LayerWeights& w = loaded(layer);
    at::Tensor x = take_hidden(hidden);
    x = x + at::linear(take(attention, {x.size(0), w.o.size(1)}), w.o);
    const at::Tensor normed = rms_norm(x, w.mlp_norm, config_.rms_norm_eps);
    x = x + at::linear(at::silu(at::linear(normed, w.gate)) * at::linear(normed, w.up), w.down);
    give(x, hidden);
  }

  void logits(std::span<const float> hidden, std::span<float> logits) const override {
    const CallGuard guard;
    const at::Tensor normed = rms_norm(take_hidden(hidden), final_norm_, config_.rms_norm_eps);
    const TensorRef& head = weights_.at(head_weight_name(config_));
    const std::int64_t vocab = head.shape[0];
    OSCAR_CHECK(logits.size() == static_cast<std::size_t>(normed.size(0) * vocab));
    const at::Tensor out = at::from_blob(logits.data(), {normed.size(0), vocab}, at::kFloat);
    for (std::int64_t begin = 0; begin < vocab; begin += kHeadBlock) {
      const std::int64_t end = std::min(vocab, begin + kHeadBlock);
      out.narrow(1, begin, end - begin).copy_(at::linear(normed, load_rows(head, begin, end)));
    }
  }

 private:
  [[nodiscard]] const LayerWeights& loaded(int layer) const {
    OSCAR_CHECK(layer == loaded_);
    return weights_of_layer_;
  }

  [[nodiscard]] at::Tensor take_hidden(std::span<const float> hidden) const {
    return take(hidden, {static_cast<std::int64_t>(hidden.size()) / config_.hidden_size, config_.hidden_size});
  }

  /// cos and sin of position * theta^(-2i/d), (T, 1, d), the d/2 angles twice. In fp32 throughout, as models are
  /// trained.
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> rope_tables(std::int64_t num_tokens) const {
    const at::Tensor exponents = at::arange(0, config_.head_dim, 2, at::kFloat) / config_.head_dim;
    const at::Tensor frequencies = at::pow(at::Scalar(config_.rope_theta), exponents).reciprocal();
    const at::Tensor half = at::arange(num_tokens, at::kFloat).unsqueeze(-1) * frequencies;
    const at::Tensor angles = at::cat({half, half}, -1).unsqueeze(1);
    return {angles.cos(), angles.sin()};
  }

  ModelConfig config_;
  const WeightStore& weights_;
  at::Tensor final_norm_;
  LayerWeights weights_of_layer_;
  int loaded_ = -1;
};

}  // namespace
}  // namespace oscar

extern "C" oscar::Decoder* oscar_make_decoder(const oscar::ModelConfig& config, const oscar::WeightStore& weights) {
  return new oscar::TorchDecoder(config, weights);
}
