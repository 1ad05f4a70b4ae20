// SPDX-License-Identifier: MIT
#include <ATen/TensorOperators.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "base/errors.hpp"
#include "model/torch/layer_math.hpp"
#include "model/torch/rows.hpp"

namespace oscar {
namespace {

constexpr double kXieluSlope = 0.5, kXieluLargest = -1e-6;

/// For x > 0: a x^2 + x / 2; else b (exp(x) - 1 - x) + x / 2, with learned a > 0 and b > 1 / 2 (arXiv 2411.13010).
at::Tensor xielu(const Weights& layer, const at::Tensor& x) {
  const std::string& prefix = layer.block().mlp.activation_prefix;
  const auto positive = [&](const char* name) { return at::softplus(layer.at(prefix + name)).to(x.scalar_type()); };
  const at::Tensor a = positive("alpha_p"), b = positive("alpha_n") + kXieluSlope;
  const at::Tensor negative = at::clamp(x, std::nullopt, kXieluLargest);
  return at::where(x > 0, a * x * x, (at::expm1(negative) - x) * b) + kXieluSlope * x;
}

/// In the memory of `x`. clamp_min_ is relu_, of which gradients would need the result, which what follows writes over.
at::Tensor activated(const Weights& layer, at::Tensor x) {
  switch (layer.block().mlp.activation) {
    case Activation::kSilu:
      return at::silu_(x);
    case Activation::kGelu:
      return at::gelu_(x);
    case Activation::kRelu:
      return at::clamp_min_(x, 0);
    case Activation::kGeluTanh:
      return at::gelu_(x, "tanh");
    case Activation::kSquaredRelu:
      return at::clamp_min_(x, 0).square_();
    case Activation::kXielu:
      return xielu(layer, x);
    case Activation::kClampedSwish:
      break;
  }
  OSCAR_CHECK(false);  // it has a gate
}

/// In the memory of `gate`.
at::Tensor gated(const Weights& layer, at::Tensor gate, const at::Tensor& up) {
  const MlpSpec& mlp = layer.block().mlp;
  if (mlp.activation != Activation::kClampedSwish) return activated(layer, std::move(gate)).mul_(up);
  const at::Tensor low = at::clamp(gate, std::nullopt, mlp.clamp);
  return (at::clamp(up, -mlp.clamp, mlp.clamp) + 1) * (low * at::sigmoid(low * mlp.alpha));
}

/// Scores outside the groups with the best pairs of scores become -inf.
at::Tensor keep_groups(const ExpertsSpec& e, const at::Tensor& scores) {
  const at::Tensor groups = scores.view({scores.size(0), e.groups, e.count / e.groups});
  const at::Tensor best = std::get<0>(groups.topk(e.group_votes)).sum(-1);
  const at::Tensor kept = std::get<1>(best.topk(e.top_groups));
  const at::Tensor mask = at::zeros_like(best).scatter(1, kept, 1).unsqueeze(-1).expand_as(groups);
  return groups.masked_fill(mask == 0, -std::numeric_limits<float>::infinity()).view(scores.sizes());
}

}  // namespace

at::Tensor dense_mlp(const Weights& layer, const at::Tensor& x) {
  const MlpSpec& mlp = layer.block().mlp;
  const at::Tensor normed = layer.norm(x, layer.block().mlp_norm), up = layer.linear(normed, mlp.up);
  const at::Tensor inner = mlp.gate.empty() ? activated(layer, up) : gated(layer, layer.linear(normed, mlp.gate), up);
  return scaled_residual(layer, layer.norm(layer.linear(inner, mlp.down), layer.block().mlp_out_norm));
}

at::Tensor scaled_residual(const Weights& layer, const at::Tensor& added) {
  return layer.block().residual_scale == 1 ? added : added * layer.block().residual_scale;
}

at::Tensor with_layer_input(const Weights& layer, const at::Tensor& x, const at::Tensor& embedding,
                            const at::Tensor& own) {
  const at::Tensor projected =
      layer.linear(embedding, "per_layer_model_projection") / std::sqrt(static_cast<double>(x.size(-1)));
  const at::Tensor input = (layer.norm(projected, "per_layer_projection_norm") +
                            own * std::sqrt(static_cast<double>(layer.block().input_dim))) /
                           std::numbers::sqrt2;
  const at::Tensor inner = gated(layer, layer.linear(x, "per_layer_input_gate"), input);
  return x + layer.norm(layer.linear(inner, "per_layer_projection"), "post_per_layer_input_norm");
}

at::Tensor scaled(const Weights& layer, const at::Tensor& x) {
  return layer.block().scalar.empty() ? x : x * layer.at(layer.block().scalar).to(x.scalar_type());
}

namespace {

/// Which experts (T, top_k), int64, and with which weights, fp32.
struct Chosen {
  at::Tensor experts, weights;
};

/// normed: x by the MLP's norm.
Chosen choose_experts(const Weights& layer, const at::Tensor& x, const at::Tensor& normed) {
  const ExpertsSpec& e = layer.block().mlp.experts;
  // Choices are made in fp32.
  const at::Tensor seen = e.router_scale.empty()
                              ? normed.to(at::kFloat)
                              : normalize(x, layer.config().rms_norm_eps) * layer.at(e.router_scale) /
                                    std::sqrt(static_cast<double>(x.size(-1)));
  const at::Tensor logits = layer.linear(seen, e.gate);
  if (e.router == Router::kSoftmaxOfChosen) {
    const auto [values, experts] = at::topk(logits, e.top_k);
    return {experts, at::softmax(values, -1) * e.scale};
  }
  const at::Tensor scores = e.router == Router::kSigmoid ? at::sigmoid(logits) : at::softmax(logits, -1);
  at::Tensor order = e.choice_bias.empty() ? scores : scores + layer.at(e.choice_bias);
  if (e.top_groups < e.groups) order = keep_groups(e, order);
  const at::Tensor experts = std::get<1>(at::topk(order, e.top_k));
  at::Tensor weights = scores.gather(1, experts);
  if (e.normalize) weights = weights / weights.sum(-1, true);
  if (!e.expert_scale.empty()) weights = weights * layer.at(e.expert_scale).take(experts);
  return {experts, weights * e.scale};
}

ExpertSlots sort_by_expert(const Chosen& chosen, int num_experts) {
  const at::Tensor named = chosen.experts.flatten();
  const at::Tensor counts = at::bincount(named, {}, num_experts).to(at::kCPU);
  const at::Tensor order = at::argsort(named, /*stable=*/true);  // slots t * top_k + i of tokens t
  ExpertSlots out{
      at::floor_divide(order, chosen.experts.size(1)), chosen.weights.flatten().index_select(0, order), {0}};
  for (int e = 0; e < num_experts; ++e) out.begins.push_back(out.begins.back() + counts.data_ptr<std::int64_t>()[e]);
  return out;
}

/// The tokens of one expert, each once, and its weights for them.
std::pair<at::Tensor, at::Tensor> slots_of(const ExpertSlots& slots, int expert) {
  const auto e = static_cast<std::size_t>(expert);
  const std::int64_t begin = slots.begins[e], count = slots.begins[e + 1] - begin;
  return {slots.tokens.narrow(0, begin, count), slots.weights.narrow(0, begin, count)};
}

/// What the experts for all tokens give for normed hidden states; zeros if there is none.
at::Tensor shared_experts(const Weights& layer, const at::Tensor& normed) {
  const ExpertsSpec& e = layer.block().mlp.experts;
  if (e.shared.empty()) return at::zeros_like(normed);
  const at::Tensor inner =
      gated(layer, layer.linear(normed, e.shared + ".gate_proj"), layer.linear(normed, e.shared + ".up_proj"));
  const at::Tensor out = layer.linear(inner, e.shared + ".down_proj");
  return e.shared_gate.empty() ? out : at::sigmoid(layer.linear(normed, e.shared_gate)) * out;
}

/// One routed expert on rows of normed hidden states.
at::Tensor routed_expert(const Weights& layer, const Weights& expert, const at::Tensor& normed) {
  const at::Tensor inner = gated(layer, expert.linear(normed, "gate"), expert.linear(normed, "up"));
  return expert.linear(inner, "down");
}

}  // namespace

std::vector<int> ExpertSlots::chosen() const {
  std::vector<int> named;
  for (std::size_t e = 0; e + 1 < begins.size(); ++e) {
    if (begins[e] < begins[e + 1]) named.push_back(static_cast<int>(e));
  }
  return named;
}

std::unique_ptr<RoutedRows> route_rows(const Weights& layer, const at::Tensor& hidden, const RowBatches& by_rows) {
  const ExpertsSpec& e = layer.block().mlp.experts;
  const at::Tensor normed = layer.norm(hidden, layer.block().mlp_norm);
  auto rows = std::make_unique<RoutedRows>();
  rows->normed = e.input_norm.empty() ? normed : layer.norm(hidden, e.input_norm);
  rows->slots = sort_by_expert(choose_experts(layer, hidden, normed), e.count);
  rows->sum = by_rows(normed, [&](const at::Tensor& x) { return shared_experts(layer, x); }).to(at::kFloat);
  if (e.routed_norm.empty()) return rows;
  rows->shared = layer.norm(rows->sum, e.shared_norm);
  rows->sum = at::zeros_like(rows->sum);  // a new one: gradients need what the norm read
  return rows;
}

void add_to_sum(const Weights& layer, int expert, const Weights& weights, const RowBatches& by_rows, RoutedRows& rows) {
  const auto [tokens, shares] = slots_of(rows.slots, expert);
  if (tokens.size(0) == 0) return;
  const at::Tensor y = by_rows(rows.normed.index_select(0, tokens),
                               [&](const at::Tensor& x) { return routed_expert(layer, weights, x); });
  rows.sum.index_add_(0, tokens, y.to(at::kFloat) * shares.unsqueeze(1));
}

at::Tensor whole_sum(const Weights& layer, const RoutedRows& rows) {
  const ExpertsSpec& e = layer.block().mlp.experts;
  const at::Tensor sum = e.routed_norm.empty() ? rows.sum : rows.shared + layer.norm(rows.sum, e.routed_norm);
  return scaled_residual(layer, layer.norm(sum, layer.block().mlp_out_norm));
}

}  // namespace oscar
