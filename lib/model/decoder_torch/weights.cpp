// SPDX-License-Identifier: MIT
#include "model/decoder_torch/weights.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rsqrt.h>

#include <array>
#include <cmath>
#include <cstring>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "model/layout.hpp"

namespace oscar {
namespace {

at::ScalarType scalar_type(DType dtype) {
  OSCAR_CHECK(is_activation_dtype(dtype));
  return dtype == DType::kF32 ? at::kFloat : dtype == DType::kBF16 ? at::kBFloat16 : at::kHalf;
}

const std::array<float, 256>& float8_values() {
  static const std::array<float, 256> kValues = [] {
    std::array<float, 256> values{};
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = float_from_f8e4m3(static_cast<std::uint8_t>(i));
    return values;
  }();
  return kValues;
}

/// "…q_proj.weight" -> its scales: one for all, one per row, or one per block of rows and columns.
const TensorRef& float8_scale(const WeightStore& store, const std::string& name) {
  return store.at(store.contains(name + "_scale") ? name + "_scale" : name + "_scale_inv");
}

at::Tensor load_float8(const WeightStore& store, const std::string& name) {
  const TensorRef& weight = store.at(name);
  const TensorRef& scale_ref = float8_scale(store, name);
  const auto rows = weight.shape[0], columns = static_cast<std::int64_t>(weight.data.size()) / rows;
  const at::Tensor scale = load_rows(scale_ref, 0, scale_ref.shape.empty() ? 1 : scale_ref.shape[0]);
  const std::int64_t scale_rows = scale.numel() == 1 ? 1 : scale.size(0);
  const std::int64_t scale_columns = scale.numel() / scale_rows;
  // Blocks are 128 wide in all checkpoints; the last may be cut off.
  const auto block = [&](std::int64_t size, std::int64_t count) { return count == 1 ? size : count == size ? 1 : 128; };
  const std::int64_t height = block(rows, scale_rows), width = block(columns, scale_columns);
  if ((rows + height - 1) / height != scale_rows || (columns + width - 1) / width != scale_columns) {
    throw DataError(
        "the scales " + shape_text(scale_ref.shape) + " do not fit the float8 weight " + shape_text(weight.shape), name,
        "use a checkpoint with blocks of 128 x 128, or with one scale a row or a matrix");
  }
  at::Tensor out = at::empty({rows, columns}, at::kFloat);
  auto* to = out.data_ptr<float>();
  const auto* scales = scale.data_ptr<float>();
  const auto* from = reinterpret_cast<const std::uint8_t*>(weight.data.data());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      *to++ = float8_values()[*from++] * scales[row / height * scale_columns + column / width];
    }
  }
  return out;
}

/// Part `index` of a stack (count, …) as a tensor of its own.
TensorRef slice(const TensorRef& stack, int index) {
  const std::size_t bytes = stack.data.size() / static_cast<std::size_t>(stack.shape[0]);
  return {stack.dtype,
          {stack.shape.begin() + 1, stack.shape.end()},
          stack.data.subspan(static_cast<std::size_t>(index) * bytes, bytes)};
}

at::Tensor load_slice(const WeightStore& store, const std::string& name, int index) {
  const TensorRef part = slice(store.at(name), index);
  const at::Tensor loaded = load_rows(part, 0, part.shape[0]);
  store.done_with(part.data);
  return loaded;
}

/// Blocks of 32 four-bit floats, low nibble first, times 2^(scale - 127): (out, in / 32, 16) bytes -> (out, in).
at::Tensor load_mxfp4(const WeightStore& store, const std::string& name, int index) {
  constexpr std::array<float, 16> kValues{0, .5F, 1, 1.5F, 2, 3, 4, 6, -0.F, -.5F, -1, -1.5F, -2, -3, -4, -6};
  const TensorRef blocks = slice(store.at(name + "_blocks"), index), scales = slice(store.at(name + "_scales"), index);
  at::Tensor out = at::empty({blocks.shape[0], blocks.shape[1] * 32}, at::kFloat);
  auto* to = out.data_ptr<float>();
  for (std::size_t block = 0; block < scales.data.size(); ++block) {
    const float scale = std::ldexp(1.0F, std::to_integer<int>(scales.data[block]) - 127);
    for (std::size_t i = 0; i < 16; ++i) {
      const auto pair = std::to_integer<std::uint8_t>(blocks.data[block * 16 + i]);
      *to++ = kValues[pair & 15U] * scale;
      *to++ = kValues[pair >> 4U] * scale;
    }
  }
  store.done_with(blocks.data);
  return out;
}

/// Rows [begin, begin + count) of a fused matrix, and of its bias, under a name of their own.
void split_off(Weights& weights, const std::string& fused, std::int64_t begin, std::int64_t count,
               const std::string& part) {
  for (const char* kind : {".weight", ".bias"}) {
    if (weights.contains(fused + kind)) weights.put(part + kind, weights.at(fused + kind).narrow(0, begin, count));
  }
}

void take_apart(Weights& weights) {
  const MixerSpec& m = weights.block().mixer;
  const MlpSpec& mlp = weights.block().mlp;
  if (!m.fused.empty()) {
    const std::int64_t queries = std::int64_t{m.num_heads} * m.head_dim,
                       keys = std::int64_t{m.num_kv_heads} * m.head_dim;
    split_off(weights, m.fused, 0, queries, "self_attn.q_proj");
    split_off(weights, m.fused, queries, keys, "self_attn.k_proj");
    split_off(weights, m.fused, queries + keys, std::int64_t{m.num_kv_heads} * m.value_dim, "self_attn.v_proj");
  }
  if (m.kind == MixerKind::kAttention && m.output_gate) {  // per head: first the query, then the gate
    for (const char* kind : {".weight", ".bias"}) {
      if (!weights.contains(std::string("self_attn.q_proj") + kind)) continue;
      const at::Tensor both = weights.at(std::string("self_attn.q_proj") + kind);
      const at::Tensor heads = both.view({m.num_heads, 2, m.head_dim, both.numel() / both.size(0)});
      const auto half = [&](int i) {
        return both.dim() == 1 ? heads.select(1, i).reshape({-1}) : heads.select(1, i).reshape({-1, both.size(1)});
      };
      weights.put(std::string("self_attn.gate") + kind, half(1));
      weights.put(std::string("self_attn.q_proj") + kind, half(0));
    }
  }
  if (!mlp.fused.empty() && mlp.experts.count == 0) {
    split_off(weights, mlp.fused, 0, mlp.intermediate, mlp.gate);
    split_off(weights, mlp.fused, mlp.intermediate, mlp.intermediate, mlp.up);
  }
}

}  // namespace

at::Tensor normalize(const at::Tensor& x, double eps) { return x * at::rsqrt(x.pow(2).mean(-1, true) + eps); }

at::Tensor Weights::linear(const at::Tensor& x, const std::string& part) const {
  const std::string bias = part + ".bias";
  return at::linear(x, at(part + ".weight"), contains(bias) ? std::optional(at(bias)) : std::nullopt);
}

at::Tensor Weights::norm(const at::Tensor& x, const std::string& part) const {
  if (part.empty()) return x;
  const at::Tensor& weight = at(part + ".weight");
  const at::Tensor normed = normalize(x, config_.rms_norm_eps);
  return config_.norm_plus_one ? normed * (1.0 + weight) : weight * normed;
}

at::Tensor load_rows(const TensorRef& weight, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> shape = weight.shape.empty() ? std::vector<std::int64_t>{1} : weight.shape;
  const std::size_t row_bytes = weight.data.size() / static_cast<std::size_t>(shape[0]);
  shape[0] = end - begin;
  at::Tensor stored = at::empty(shape, scalar_type(weight.dtype));
  const auto rows = weight.data.subspan(static_cast<std::size_t>(begin) * row_bytes,
                                        static_cast<std::size_t>(end - begin) * row_bytes);
  std::memcpy(stored.data_ptr(), rows.data(), rows.size());
  return stored.to(at::kFloat);
}

at::Tensor load_tensor(const WeightStore& store, const std::string& name) {
  const TensorRef& weight = store.at(name);
  const at::Tensor loaded =
      weight.dtype == DType::kF8E4M3 ? load_float8(store, name) : load_rows(weight, 0, weight.shape[0]);
  store.done_with(weight.data);
  return loaded;
}

std::unique_ptr<Weights> load_layer_weights(const ModelConfig& config, const WeightStore& store, int layer) {
  auto weights = std::make_unique<Weights>(config, config.blocks[static_cast<std::size_t>(layer)]);
  for (const WeightSpec& spec : layer_weights(config, layer)) {
    weights->put(spec.name, load_tensor(store, layer_weight_name(layer, spec.name)));
  }
  take_apart(*weights);
  return weights;
}

std::unique_ptr<Weights> load_expert_weights(const ModelConfig& config, const WeightStore& store, int layer,
                                             int expert) {
  auto weights = std::make_unique<Weights>(config, config.blocks[static_cast<std::size_t>(layer)]);
  const ExpertsSpec& e = weights->block().mlp.experts;
  const std::string prefix = layer_weight_name(layer, e.prefix) + ".";
  if (e.layout == ExpertLayout::kSeparate) {
    const std::string own = prefix + std::to_string(expert) + ".";
    weights->put("gate.weight", load_tensor(store, own + e.gate_proj + ".weight"));
    weights->put("up.weight", load_tensor(store, own + e.up_proj + ".weight"));
    weights->put("down.weight", load_tensor(store, own + e.down_proj + ".weight"));
    return weights;
  }
  if (e.layout == ExpertLayout::kStacked) {
    const at::Tensor both = load_slice(store, prefix + "gate_up_proj", expert);
    weights->put("gate.weight", both.narrow(0, 0, e.intermediate));
    weights->put("up.weight", both.narrow(0, e.intermediate, e.intermediate));
    weights->put("down.weight", load_slice(store, prefix + "down_proj", expert));
    return weights;
  }
  const auto matrix = [&](const char* name) {  // gate and up rows alternate
    return e.layout == ExpertLayout::kMxfp4 ? load_mxfp4(store, prefix + name, expert)
                                            : load_slice(store, prefix + name, expert).t().contiguous();
  };
  const at::Tensor both = matrix("gate_up_proj"), bias = load_slice(store, prefix + "gate_up_proj_bias", expert);
  const auto every_other = [](const at::Tensor& x, int first) { return x.slice(0, first, x.size(0), 2).contiguous(); };
  weights->put("gate.weight", every_other(both, 0));
  weights->put("gate.bias", every_other(bias, 0));
  weights->put("up.weight", every_other(both, 1));
  weights->put("up.bias", every_other(bias, 1));
  weights->put("down.weight", matrix("down_proj"));
  weights->put("down.bias", load_slice(store, prefix + "down_proj_bias", expert));
  return weights;
}

}  // namespace oscar
