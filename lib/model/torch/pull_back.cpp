// SPDX-License-Identifier: MIT
#include "model/torch/pull_back.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <utility>

#include "model/torch/embedding.hpp"
#include "model/torch/experts.hpp"
#include "model/torch/head.hpp"

namespace oscar {
namespace {

// Logits in memory at a time, four times over; on the CPU of each thread.
constexpr std::int64_t kLogits = std::int64_t{1} << 22, kGpuLogits = std::int64_t{1} << 24;

/// A tensor of its own by which gradients can be asked for.
at::Tensor leaf(const at::Tensor& x) { return x.clone().requires_grad_(); }

/// A layer on all rows of a sequence, with what gradients are asked for where they are tracked. They end at what
/// attention gives, and begin again at what it reads.
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
      qkv.k = kept.k.to(route.device.place()), qkv.v = kept.v.to(route.device.place());
    }
    {
      const at::AutoGradMode untracked(false);
      attended = exact_attention(layer, qkv);
    }
    attended.requires_grad_(at::GradMode::is_enabled());
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

/// The gradient that a leaf has, which it loses.
at::Tensor take_gradient(const at::Tensor& leaf) { return std::exchange(leaf.mutable_grad(), {}); }

/// Gradients of several layers by the same keys or values add up.
void add_to(at::Tensor& sum, const at::Tensor& gradient) { sum = sum.defined() ? sum + gradient : gradient; }

/// Takes gradients by what attention reads to x, and to the layer whose keys and values these are.
void pull_reads(const MixerSpec& m, const Projected& qkv, const AttentionGradients& reads, HiddenRows& gradient) {
  at::Tensor objective = product(qkv.q, reads.query);
  if (m.own_kv) {
    objective = objective + product(qkv.k, reads.cache.key) + product(qkv.v, reads.cache.value);
    if (gradient.kept.contains(m.kv_layer)) {
      const Projected& later = gradient.kept.at(m.kv_layer);
      objective = objective + product(qkv.k, later.k) + product(qkv.v, later.v);
    }
  } else {
    Projected& shared = gradient.kept[m.kv_layer];
    add_to(shared.k, reads.cache.key), add_to(shared.v, reads.cache.value);
  }
  objective.backward({}, /*retain_graph=*/true);
}

}  // namespace

std::unique_ptr<HiddenRows> behind_layer(const WeightRoute& route, const Weights& layer, Decoder::Experts experts,
                                         const RowBatches& by_rows, const HiddenRows& before) {
  auto next = std::make_unique<HiddenRows>(before);
  const Layer run(route, layer, experts, by_rows, before, before.x.to(route.device.place()));
  next->x = run.out;
  const MixerSpec& m = layer.block().mixer;
  if (m.own_kv && m.kv_layer >= 0) next->kept[m.kv_layer] = {{}, run.qkv.k, run.qkv.v};
  return next;
}

std::unique_ptr<HiddenRows> kept_for_gradients(const HiddenRows& hidden) {
  auto kept = std::make_unique<HiddenRows>(hidden);
  kept->x = kept->x.to(at::kBFloat16);
  return kept;
}

std::vector<CacheGradients> pull_back(const WeightRoute& route, const Weights& layer, Decoder::Experts experts,
                                      const RowBatches& by_rows, const HiddenRows& before,
                                      std::span<HiddenRows* const> gradients, Windows windows) {
  const at::AutoGradMode differentiable(true);
  const at::Tensor x = leaf(before.x.to(route.device.place(), route.device.dtype()));
  const Layer run(route, layer, experts, by_rows, before, x);
  const bool attends = layer.block().attends();
  std::vector<at::Tensor> by_outputs;
  for (HiddenRows* gradient : gradients) {
    run.out.backward(gradient->x.to(run.out.options()), /*retain_graph=*/true);
    gradient->x = take_gradient(x);
    if (attends) by_outputs.push_back(take_gradient(run.attended));
  }
  if (!attends) return {};
  const auto reads = [&] {
    const at::AutoGradMode untracked(false);
    const Projected qkv{run.qkv.q.detach(), run.qkv.k.detach(), run.qkv.v.detach()};
    return attention_gradients(layer, qkv, run.attended.detach(), by_outputs, windows);
  }();
  std::vector<CacheGradients> of_history;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    pull_reads(layer.block().mixer, run.qkv, reads[i], *gradients[i]);
    gradients[i]->x = gradients[i]->x + take_gradient(x);
    of_history.push_back(reads[i].history);
  }
  return of_history;
}

std::vector<at::Tensor> likelihood_gradients(const Weights& head, const at::Tensor& hidden,
                                             std::span<const std::vector<float>> draws) {
  const std::int64_t rows = hidden.size(0), logits_at_once = hidden.is_cpu() ? kLogits : kGpuLogits;
  const std::int64_t at_once = std::max<std::int64_t>(1, logits_at_once / head.at("head").size(0));
  std::vector<std::vector<at::Tensor>> parts(draws.size());
  for (std::int64_t begin = 0; begin < rows; begin += at_once) {
    const std::int64_t count = std::min(at_once, rows - begin);
    const at::AutoGradMode differentiable(true);
    const at::Tensor x = leaf(hidden.narrow(0, begin, count));
    // A log-likelihood is the token's logit less the logarithm of a sum, whose gradient is the same for all tokens.
    at::Tensor sums;  // shares up to each token
    {
      const at::Tensor logits = logits_of(head, x);
      sums = at::softmax(logits.detach(), -1);
      logits.backward(sums);
    }
    const at::Tensor of_sum = take_gradient(x);
    sums.cumsum_(-1);
    for (std::size_t i = 0; i < draws.size(); ++i) {
      const at::Tensor numbers = at::from_blob(const_cast<float*>(draws[i].data()) + begin, {count, 1}, at::kFloat);
      const at::Tensor levels = numbers.to(hidden.device()) * sums.narrow(-1, sums.size(-1) - 1, 1);
      const at::Tensor drawn = at::searchsorted(sums, levels, false, /*right=*/true).clamp_max(sums.size(-1) - 1);
      logits_of(head, x, drawn.flatten()).sum().backward();
      parts[i].push_back(take_gradient(x) - of_sum);
    }
  }
  std::vector<at::Tensor> gradients;
  for (const std::vector<at::Tensor>& own : parts) gradients.push_back(at::cat(own));
  return gradients;
}

}  // namespace oscar
