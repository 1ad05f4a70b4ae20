// SPDX-License-Identifier: MIT
#include "model/torch/pull_back.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "model/torch/embedding.hpp"
#include "model/torch/experts.hpp"
#include "model/torch/head.hpp"
#include "model/torch/score_blocks.hpp"

namespace oscar {
namespace {

constexpr std::int64_t kLogits = std::int64_t{1} << 24;  // in memory at a time

/// A tensor of its own by which gradients can be asked for.
at::Tensor leaf(const at::Tensor& x, c10::Device place) { return x.to(place).clone().requires_grad_(); }

/// A layer on all rows of a sequence, with what gradients are asked for where they are tracked.
struct Layer {
  Layer(const WeightRoute& route, const Weights& layer, Decoder::Experts experts, const RowBatches& by_rows,
        const HiddenRows& before, const at::Tensor& x) {
    const at::Tensor y = x + (layer.block().attends() ? attention(route, layer, before, x) : gated_delta(layer, x));
    out = left_behind(route, layer, y + mlp(layer, experts, by_rows, layer.block().parallel ? x : y), before);
  }

  Projected qkv;
  at::Tensor attended;  // (T, Hq, d_v)
  at::Tensor out;       // hidden states behind the layer

 private:
  [[nodiscard]] at::Tensor attention(const WeightRoute& route, const Weights& layer, const HiddenRows& before,
                                     const at::Tensor& x) {
    const MixerSpec& m = layer.block().mixer;
    qkv = project_attention(layer, x, before.first_position);
    if (!m.own_kv) {
      const Projected& kept = before.kept.at(m.kv_layer);
      qkv.k = leaf(kept.k, route.device.place()), qkv.v = leaf(kept.v, route.device.place());
    }
    attended = exact_attention(layer, qkv);
    if (attended.requires_grad()) attended.retain_grad();
    return attention_output(layer, attended, x);
  }

  [[nodiscard]] static at::Tensor mlp(const Weights& layer, Decoder::Experts experts, const RowBatches& by_rows,
                                      const at::Tensor& read) {
    if (layer.block().mlp.experts.count == 0) return dense_mlp(layer, read);
    const std::unique_ptr<RoutedRows> routed = route_rows(layer, read, by_rows);
    for (const int expert : routed->slots.chosen()) {
      add_to_sum(layer, expert, ours(*experts[static_cast<std::size_t>(expert)]), by_rows, *routed);
    }
    return whole_sum(layer, *routed).to(read.scalar_type());
  }
};

/// sum of y * gradient: its gradient by what y is made of is what `gradient` becomes there.
at::Tensor product(const at::Tensor& y, const at::Tensor& gradient) {
  return (y.to(at::kFloat) * gradient.to(y.device()).to(at::kFloat)).sum();
}

/// Gradients of several layers by the same keys or values add up.
void add_to(at::Tensor& sum, const at::Tensor& gradient) { sum = sum.defined() ? sum + gradient : gradient; }

}  // namespace

HistoryGradients history_gradients(const Weights& layer, const Projected& qkv, const at::Tensor& outputs,
                                   Windows windows) {
  const MixerSpec& m = layer.block().mixer;
  const std::int64_t tokens = qkv.q.size(0), heads = qkv.q.size(1), group = heads / qkv.k.size(1);
  const auto zeros_like = [](const at::Tensor& x) { return at::zeros(x.sizes(), x.options().dtype(at::kFloat)); };
  const HistoryGradients sums{zeros_like(qkv.k), zeros_like(qkv.v)};
  const std::int64_t together = qkv.q.is_cpu() ? 1 : heads, groups = std::max<std::int64_t>(1, together / group);
  const double scale = 1 / std::sqrt(static_cast<double>(m.head_dim));
  for (std::int64_t h = 0; h < heads; h += together) {
    const auto own = [&](const at::Tensor& x) { return x.narrow(1, h, together).transpose(0, 1); };
    const auto of_group = [&](const at::Tensor& x) {
      const at::Tensor rows = x.narrow(1, h / group, groups).transpose(0, 1);
      return together == 1 ? rows : rows.repeat_interleave(group, 0);
    };
    const at::Tensor q = own(qkv.q), k = of_group(qkv.k), v = of_group(qkv.v), sinks = sinks_of(layer, h, together);
    const at::Tensor by_output = own(outputs);
    const std::int64_t at_once = queries_at_once(q);
    for (std::int64_t begin = 0; begin < tokens; begin += at_once) {
      const std::int64_t end = std::min(tokens, begin + at_once);
      if (end <= windows.sink + windows.recent) continue;  // these queries have no history
      const ScoreBlock block = score_block(m, q, k, begin, end);
      const at::Tensor shares = block.shares(sinks), gradient = block.of_queries(by_output);
      const at::Tensor by_share = at::matmul(gradient, block.of_keys(v).transpose(1, 2));
      at::Tensor history = block.behind >= windows.recent;
      const std::int64_t kept = std::clamp<std::int64_t>(windows.sink - block.first, 0, end - block.first);
      history.narrow(1, 0, kept).fill_(false);
      const at::Tensor read = shares * history;
      at::Tensor by_score = read * (by_share - (shares * by_share).sum(-1, true));
      if (block.slope.defined()) by_score = by_score * block.slope;
      const auto add = [&](const at::Tensor& sum, const at::Tensor& rows) {  // rows (together, keys, d)
        const at::Tensor of_heads = rows.view({groups, together / groups, rows.size(1), rows.size(2)}).sum(1);
        sum.narrow(0, block.first, end - block.first).narrow(1, h / group, groups).add_(of_heads.transpose(0, 1));
      };
      add(sums.key, at::matmul(by_score.transpose(1, 2), block.of_queries(q)) * scale);
      add(sums.value, at::matmul(read.transpose(1, 2), gradient));
    }
  }
  return sums;
}

std::unique_ptr<HiddenRows> behind_layer(const WeightRoute& route, const Weights& layer, Decoder::Experts experts,
                                         const RowBatches& by_rows, const HiddenRows& before) {
  auto next = std::make_unique<HiddenRows>(before);
  const Layer run(route, layer, experts, by_rows, before, before.x.to(route.device.place()));
  next->x = run.out;
  const MixerSpec& m = layer.block().mixer;
  if (m.own_kv && m.kv_layer >= 0) next->kept[m.kv_layer] = {{}, run.qkv.k, run.qkv.v};
  return next;
}

HistoryGradients pull_back(const WeightRoute& route, const Weights& layer, Decoder::Experts experts,
                           const RowBatches& by_rows, const HiddenRows& before, HiddenRows& gradient, Windows windows) {
  const MixerSpec& m = layer.block().mixer;
  const at::Tensor x = leaf(before.x, route.device.place());
  Projected qkv;
  at::Tensor attended;
  {
    const at::AutoGradMode differentiable(true);
    Layer run(route, layer, experts, by_rows, before, x);
    at::Tensor objective = product(run.out, gradient.x);
    qkv = run.qkv, attended = run.attended;
    if (m.own_kv && gradient.kept.contains(m.kv_layer)) {
      const Projected& later = gradient.kept.at(m.kv_layer);
      objective = objective + product(qkv.k, later.k) + product(qkv.v, later.v);
    }
    objective.backward();
  }
  gradient.x = x.grad();
  if (!layer.block().attends()) return {};
  if (!m.own_kv) {
    Projected& shared = gradient.kept[m.kv_layer];
    add_to(shared.k, qkv.k.grad()), add_to(shared.v, qkv.v.grad());
  }
  return history_gradients(layer, {qkv.q.detach(), qkv.k.detach(), qkv.v.detach()}, attended.grad(), windows);
}

at::Tensor likelihood_gradient(const Weights& head, const at::Tensor& hidden, std::span<const float> draws) {
  const std::int64_t rows = hidden.size(0), at_once = std::max<std::int64_t>(1, kLogits / head.at("head").size(0));
  const at::Tensor numbers = at::from_blob(const_cast<float*>(draws.data()), {rows, 1}, at::kFloat).to(hidden.device());
  std::vector<at::Tensor> parts;
  for (std::int64_t begin = 0; begin < rows; begin += at_once) {
    const std::int64_t count = std::min(at_once, rows - begin);
    const at::AutoGradMode differentiable(true);
    const at::Tensor x = leaf(hidden.narrow(0, begin, count), hidden.device());
    const at::Tensor likelihoods = at::log_softmax(logits_of(head, x), -1);
    const at::Tensor sums = likelihoods.detach().exp().cumsum(-1);
    const at::Tensor passed = sums <= numbers.narrow(0, begin, count) * sums.narrow(-1, sums.size(-1) - 1, 1);
    const at::Tensor drawn = passed.sum(-1, true).clamp_max(sums.size(-1) - 1);
    likelihoods.gather(-1, drawn).sum().backward();
    parts.push_back(x.grad());
  }
  return at::cat(parts);
}

}  // namespace oscar
