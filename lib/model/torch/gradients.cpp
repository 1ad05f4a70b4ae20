// SPDX-License-Identifier: MIT
#include "model/torch/gradients.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/torch/ends.hpp"
#include "model/torch/layer_math.hpp"

namespace oscar {
namespace {

/// Gradients by what attention reads. Reads of the history are those of keys and values that stand neither among the
/// first `sink` tokens nor among the last `recent` that a query sees.
struct AttentionGradients {
  at::Tensor query;               // (T, Hq, d), in fp32
  CacheGradients cache, history;  // through all reads, and through those of the history
};

at::Tensor nothing_like(const at::Tensor& x) { return at::zeros(x.sizes(), x.options().dtype(at::kFloat)); }

/// Some query heads that are taken together, with the KV heads that they read.
struct Heads {
  std::int64_t first, count, first_kv, kv_count;
  bool repeats;  // whether rows of KV heads are laid out once for each query head

  [[nodiscard]] at::Tensor of_queries(const at::Tensor& x) const { return x.narrow(1, first, count).transpose(0, 1); }
  [[nodiscard]] at::Tensor of_keys(const at::Tensor& x) const {
    const at::Tensor rows = x.narrow(1, first_kv, kv_count).transpose(0, 1);
    return repeats ? rows.repeat_interleave(count / kv_count, 0) : rows;
  }
};

/// Which keys the queries of a block find in the history, by position: before `begin` none does, up to `mixed` all do,
/// up to `end` some do, and from there on none.
struct HistoryKeys {
  std::int64_t begin, mixed, end;
  at::Tensor found;  // (queries, end - mixed): 1 where the query does, else 0

  HistoryKeys(const ScoreBlock& block, Windows windows)
      : begin(std::clamp<std::int64_t>(windows.sink, block.first, block.end)),
        mixed(std::clamp<std::int64_t>(block.begin - windows.recent + 1, begin, block.end)),
        end(std::clamp<std::int64_t>(block.end - windows.recent, mixed, block.end)),
        found((block.behind.narrow(1, mixed - block.first, end - mixed) >= windows.recent).to(at::kFloat)) {}
};

/// Adds up what reads of the windows, and those of the history, give to rows of one kind, (T, Hkv, d) each.
struct ReadSums {
  const Heads& heads;
  const ScoreBlock& block;
  const HistoryKeys& history;

  /// weights: (heads, queries, keys); rows: (heads, queries, d). A key gets sum over queries of weight * row, times
  /// scale.
  void add(const at::Tensor& weights, const at::Tensor& rows, double scale, const at::Tensor& of_windows,
           const at::Tensor& of_history) const {
    const auto part = [&](std::int64_t from, std::int64_t to) {
      return weights.narrow(2, from - block.first, to - from);
    };
    const auto add_part = [&](const at::Tensor& sum, const at::Tensor& own, std::int64_t from) {
      if (own.size(2) == 0) return;
      const at::Tensor found = at::matmul(own.transpose(1, 2), rows) * scale;  // (heads, keys, d)
      const at::Tensor of_kv_heads =
          found.view({heads.kv_count, heads.count / heads.kv_count, found.size(1), found.size(2)}).sum(1);
      sum.narrow(0, from, own.size(2)).narrow(1, heads.first_kv, heads.kv_count).add_(of_kv_heads.transpose(0, 1));
    };
    const at::Tensor mixed = part(history.mixed, history.end), found = mixed * history.found;
    add_part(of_windows, part(block.first, history.begin), block.first);
    add_part(of_history, part(history.begin, history.mixed), history.begin);
    add_part(of_history, found, history.mixed);
    add_part(of_windows, mixed - found, history.mixed);
    add_part(of_windows, part(history.end, block.end), history.end);
  }
};

/// Returns the gradients for each of several gradients by the attention's outputs. outputs: what attention gave,
/// (T, Hq, d_v); by_outputs: of the same shape. All share the scores.
std::vector<AttentionGradients> attention_gradients(const Weights& layer, const Projected& qkv,
                                                    const at::Tensor& outputs, std::span<const at::Tensor> by_outputs,
                                                    Windows windows) {
  const MixerSpec& m = layer.block().mixer;
  const std::int64_t tokens = qkv.q.size(0), heads = qkv.q.size(1), group = heads / qkv.k.size(1);
  std::vector<AttentionGradients> sums;  // `cache` has the windows' part, until the end
  for (std::size_t i = 0; i < by_outputs.size(); ++i) {
    sums.push_back(
        {nothing_like(qkv.q), {nothing_like(qkv.k), nothing_like(qkv.v)}, {nothing_like(qkv.k), nothing_like(qkv.v)}});
  }
  const std::int64_t together = qkv.q.is_cpu() ? 1 : heads;
  const double scale = 1 / std::sqrt(static_cast<double>(m.head_dim));
  for (std::int64_t h = 0; h < heads; h += together) {
    const Heads own{h, together, h / group, std::max<std::int64_t>(1, together / group), together > 1};
    const at::Tensor q = own.of_queries(qkv.q), k = own.of_keys(qkv.k), v = own.of_keys(qkv.v);
    const at::Tensor out = own.of_queries(outputs), sinks = sinks_of(layer, h, together);
    const std::int64_t at_once = queries_at_once(q);
    for (std::int64_t begin = 0; begin < tokens; begin += at_once) {
      const ScoreBlock block = score_block(m, q, k, begin, std::min(tokens, begin + at_once));
      const HistoryKeys history(block, windows);
      const ReadSums reads{own, block, history};
      const at::Tensor shares = block.shares(sinks), asking = block.of_queries(q);
      for (std::size_t i = 0; i < by_outputs.size(); ++i) {
        const at::Tensor gradient = block.of_queries(own.of_queries(by_outputs[i]));
        // What every share of a query would change together, changes nothing.
        const at::Tensor common = (gradient * block.of_queries(out)).sum(-1, true);
        at::Tensor by_score = at::matmul(gradient, block.of_keys(v).transpose(1, 2)).sub_(common).mul_(shares);
        if (block.slope.defined()) by_score.mul_(block.slope);
        own.of_queries(sums[i].query)
            .narrow(1, begin, block.end - begin)
            .copy_(at::matmul(by_score, block.of_keys(k)) * scale);
        reads.add(by_score, asking, scale, sums[i].cache.key, sums[i].history.key);
        reads.add(shares, gradient, 1, sums[i].cache.value, sums[i].history.value);
      }
    }
  }
  for (AttentionGradients& each : sums) each.cache.key += each.history.key, each.cache.value += each.history.value;
  return sums;
}

// Logits in memory at a time; on the CPU of each thread. Rows whose logits these are share one reading of the head.
constexpr std::int64_t kLogits = std::int64_t{1} << 24, kGpuLogits = std::int64_t{1} << 26;

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
  const at::Tensor& matrix = head.at("head.weight");
  const double scale = head.config().logit_scale, cap = head.config().logit_soft_cap;
  const std::int64_t rows = hidden.size(0), logits_at_once = hidden.is_cpu() ? kLogits : kGpuLogits;
  const std::int64_t at_once = std::max<std::int64_t>(1, logits_at_once / matrix.size(0));
  std::vector<std::vector<at::Tensor>> parts(draws.size());
  for (std::int64_t begin = 0; begin < rows; begin += at_once) {
    const std::int64_t count = std::min(at_once, rows - begin);
    const at::AutoGradMode differentiable(true);
    const at::Tensor x = leaf(hidden.narrow(0, begin, count)), normed = head.norm(x, "norm");
    const at::AutoGradMode untracked(false);
    at::Tensor logits = at::linear(normed.detach(), matrix).to(at::kFloat), slope;
    finish_logits(head, logits);
    if (cap > 0) slope = 1 - (logits / cap).square();
    const at::Tensor sums = logits.sub_(logits.amax(-1, true)).exp_();  // in the same memory
    // A log-likelihood is the token's logit less the logarithm of a sum, whose gradient is the same for all tokens.
    const at::Tensor of_sum =
        at::matmul((cap > 0 ? sums * slope : sums).to(matrix.scalar_type()), matrix).to(at::kFloat) /
        sums.sum(-1, true);
    sums.cumsum_(-1);
    for (std::size_t i = 0; i < draws.size(); ++i) {
      const at::Tensor numbers = at::from_blob(const_cast<float*>(draws[i].data()) + begin, {count, 1}, at::kFloat);
      const at::Tensor levels = numbers.to(hidden.device()) * sums.narrow(-1, sums.size(-1) - 1, 1);
      const at::Tensor drawn = at::searchsorted(sums, levels, false, /*right=*/true).clamp_max(sums.size(-1) - 1);
      at::Tensor of_drawn = matrix.index_select(0, drawn.flatten()).to(at::kFloat);
      if (cap > 0) of_drawn.mul_(slope.gather(-1, drawn));
      const at::Tensor gradient = (of_drawn - of_sum) * scale;
      normed.backward(gradient.to(normed.scalar_type()), /*retain_graph=*/true);
      parts[i].push_back(take_gradient(x));
    }
  }
  std::vector<at::Tensor> gradients;
  for (const std::vector<at::Tensor>& own : parts) gradients.push_back(at::cat(own));
  return gradients;
}

}  // namespace oscar
