// SPDX-License-Identifier: MIT
#include "model/torch/weights.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rsqrt.h>

#include <optional>

#include "model/torch/fetch.hpp"
#include "model/weights/layout.hpp"

namespace oscar {
namespace {

/// Rows [begin, begin + count) of a fused matrix, and of its bias, under a name of their own.
void split_off(Weights& weights, const std::string& fused, std::int64_t begin, std::int64_t count,
               const std::string& part) {
  for (const char* kind : {".weight", ".bias"}) {
    if (weights.contains(fused + kind)) weights.put(part + kind, weights.at(fused + kind).narrow(0, begin, count));
  }
}

void split_qkv(Weights& weights) {
  const MixerSpec& m = weights.block().mixer;
  const std::int64_t queries = std::int64_t{m.num_heads} * m.head_dim;
  const std::int64_t keys = std::int64_t{m.num_kv_heads} * m.head_dim;
  split_off(weights, m.fused, 0, queries, "self_attn.q_proj");
  split_off(weights, m.fused, queries, keys, "self_attn.k_proj");
  split_off(weights, m.fused, queries + keys, std::int64_t{m.num_kv_heads} * m.value_dim, "self_attn.v_proj");
}

/// Per head: first the query, then the gate.
void split_output_gate(Weights& weights) {
  const MixerSpec& m = weights.block().mixer;
  for (const std::string kind : {".weight", ".bias"}) {
    if (!weights.contains("self_attn.q_proj" + kind)) continue;
    const at::Tensor both = weights.at("self_attn.q_proj" + kind);
    const at::Tensor heads = both.view({m.num_heads, 2, m.head_dim, both.numel() / both.size(0)});
    const auto half = [&](int i) {
      return both.dim() == 1 ? heads.select(1, i).reshape({-1}) : heads.select(1, i).reshape({-1, both.size(1)});
    };
    weights.put("self_attn.gate" + kind, half(1));
    weights.put("self_attn.q_proj" + kind, half(0));
  }
}

void take_apart(Weights& weights) {
  const MixerSpec& m = weights.block().mixer;
  const MlpSpec& mlp = weights.block().mlp;
  if (!m.fused.empty()) split_qkv(weights);
  if (m.kind == MixerKind::kAttention && m.output_gate) split_output_gate(weights);
  if (!mlp.fused.empty() && mlp.experts.count == 0) {
    split_off(weights, mlp.fused, 0, mlp.intermediate, mlp.gate);
    split_off(weights, mlp.fused, mlp.intermediate, mlp.intermediate, mlp.up);
  }
}

/// Rows [begin, end) of a matrix.
StoredWeight want_rows(Fetch& fetch, const WeightStore& store, const std::string& name, std::int64_t begin,
                       std::int64_t end) {
  TensorRef rows = store.at(name);
  const std::size_t row_bytes = rows.data.size() / static_cast<std::size_t>(rows.shape[0]);
  rows.shape[0] = end - begin;
  rows.data =
      rows.data.subspan(static_cast<std::size_t>(begin) * row_bytes, static_cast<std::size_t>(end - begin) * row_bytes);
  return {fetch.want(rows), {}, name};
}

/// A layer's part of what makes inputs of layers, if there are any.
void want_layer_input(Fetch& fetch, const WeightRoute& route, const BlockSpec& block,
                      std::map<std::string, StoredWeight>& stored) {
  if (block.input_dim == 0) return;
  const std::int64_t dim = block.input_dim, begin = block.input_index * dim;
  stored["per_layer_model_projection.weight"] =
      want_rows(fetch, route.store, kLayerInputProjectionName, begin, begin + dim);
  stored["per_layer_projection_norm.weight"] = want_weight(fetch, route.store, kLayerInputNormName);
}

/// One expert as it is stored, by part ("gate.weight"); gate and up are one matrix, "gate", in stacks of both.
using StoredExpert = std::map<std::string, StoredWeight>;

StoredExpert want_expert(Fetch& fetch, const WeightStore& store, const ExpertsSpec& e, const std::string& prefix,
                         int expert) {
  StoredExpert out;
  if (e.layout == ExpertLayout::kSeparate) {
    const std::string own = prefix + std::to_string(expert) + ".";
    out["gate.weight"] = want_weight(fetch, store, own + e.gate_proj + ".weight");
    out["up.weight"] = want_weight(fetch, store, own + e.up_proj + ".weight");
    out["down.weight"] = want_weight(fetch, store, own + e.down_proj + ".weight");
    return out;
  }
  const auto want = e.layout == ExpertLayout::kMxfp4 ? want_mxfp4 : want_slice;
  const bool apart = e.layout == ExpertLayout::kStackedParts;
  const bool bias = apart ? e.bias : e.layout == ExpertLayout::kStackedTransposed || e.layout == ExpertLayout::kMxfp4;
  for (const std::string part : {"gate", "up", "down"}) {
    if (part == "up" && !apart) continue;
    const std::string name = prefix + (part == "gate" && !apart ? "gate_up_proj" : part + "_proj");
    out[part + ".weight"] = want(fetch, store, name, expert);
    if (bias) out[part + ".bias"] = want_slice(fetch, store, name + "_bias", expert);
  }
  return out;
}

void unpack_expert(const StoredExpert& stored, const ExpertsSpec& e, at::ScalarType dtype, Weights& out) {
  for (const auto& [name, weight] : stored) out.put(name, weight.unpack(dtype));
  if (stored.contains("up.weight")) return;
  if (e.layout == ExpertLayout::kStacked || e.layout == ExpertLayout::kStackedByInput) {
    const auto by_output = [&](const at::Tensor& x) {
      return e.layout == ExpertLayout::kStacked ? x : x.t().contiguous();
    };
    const at::Tensor both = by_output(out.at("gate.weight"));
    out.put("gate.weight", both.narrow(0, 0, e.intermediate));
    out.put("up.weight", both.narrow(0, e.intermediate, e.intermediate));
    out.put("down.weight", by_output(out.at("down.weight")));
    return;
  }
  // Gate and up rows alternate.
  const bool transposed = e.layout == ExpertLayout::kStackedTransposed;
  const auto every_other = [](const at::Tensor& x, int first) { return x.slice(0, first, x.size(0), 2).contiguous(); };
  const at::Tensor gate = out.at("gate.weight"), both = transposed ? gate.t() : gate, bias = out.at("gate.bias");
  out.put("gate.weight", every_other(both, 0));
  out.put("gate.bias", every_other(bias, 0));
  out.put("up.weight", every_other(both, 1));
  out.put("up.bias", every_other(bias, 1));
  if (transposed) out.put("down.weight", out.at("down.weight").t().contiguous());
}

}  // namespace

at::Tensor normalize(const at::Tensor& x, double eps) {
  const at::Tensor floats = x.to(at::kFloat);
  return floats * at::rsqrt(floats.pow(2).mean(-1, true) + eps);
}

at::Tensor Weights::linear(const at::Tensor& x, const std::string& part) const {
  const std::string bias = part + ".bias";
  return at::linear(x, at(part + ".weight").to(x.scalar_type()),
                    contains(bias) ? std::optional(at(bias).to(x.scalar_type())) : std::nullopt);
}

at::Tensor Weights::exact_norm(const at::Tensor& x, const std::string& part) const {
  if (part.empty()) return x;
  const at::Tensor& weight = at(part + ".weight");
  const at::Tensor floats = x.to(at::kFloat);
  at::Tensor normed = normalize(config_.layer_norm ? floats - floats.mean(-1, true) : floats, config_.rms_norm_eps);
  normed.mul_(config_.norm_plus_one ? 1.0 + weight : weight);
  return contains(part + ".bias") ? normed.add_(at(part + ".bias")) : normed;
}

at::Tensor Weights::norm(const at::Tensor& x, const std::string& part) const {
  return exact_norm(x, part).to(x.scalar_type());
}

at::Tensor load_tensor(const WeightRoute& route, const std::string& name) {
  const SideStream loading(route.device, route.device.layer_stream(), SideStream::Starts::kNow);
  Fetch fetch(route.store, route.device);
  const StoredWeight stored = want_weight(fetch, route.store, name);
  fetch.run();
  at::Tensor loaded = stored.unpack(route.device.dtype());
  loading.finish();
  return loaded;
}

std::unique_ptr<Weights> load_layer_weights(const WeightRoute& route, int layer) {
  const SideStream loading(route.device, route.device.layer_stream(), SideStream::Starts::kNow);
  auto weights = std::make_unique<Weights>(route.config, route.config.block(layer));
  Fetch fetch(route.store, route.device);
  std::map<std::string, StoredWeight> stored;
  for (const WeightSpec& spec : layer_weights(route.config, layer)) {
    stored[spec.name] = want_weight(fetch, route.store, layer_weight_name(layer, spec.name));
  }
  want_layer_input(fetch, route, weights->block(), stored);
  fetch.run();
  for (auto& [name, weight] : stored) {
    weights->put(name, weight.unpack(route.device.dtype()));
    weight = {};
  }
  take_apart(*weights);
  loading.finish();
  return weights;
}

std::vector<std::unique_ptr<LoadedWeights>> load_expert_weights(const WeightRoute& route, int layer,
                                                                std::span<const int> experts) {
  const SideStream loading(route.device, route.device.expert_stream(), SideStream::Starts::kNow);
  const BlockSpec& block = route.config.block(layer);
  const ExpertsSpec& e = block.mlp.experts;
  const std::string prefix = layer_weight_name(layer, e.prefix) + ".";
  Fetch fetch(route.store, route.device);
  std::vector<StoredExpert> stored;
  for (const int expert : experts) stored.push_back(want_expert(fetch, route.store, e, prefix, expert));
  fetch.run();
  std::vector<std::unique_ptr<LoadedWeights>> loaded;
  for (StoredExpert& expert : stored) {
    auto weights = std::make_unique<Weights>(route.config, block);
    unpack_expert(expert, e, route.device.dtype(), *weights);
    expert = {};
    loaded.push_back(std::move(weights));
  }
  loading.finish();
  return loaded;
}

}  // namespace oscar
