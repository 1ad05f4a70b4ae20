// SPDX-License-Identifier: MIT
#include "model/torch/attention_gradients.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "model/torch/score_blocks.hpp"

namespace oscar {
namespace {

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

}  // namespace

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

}  // namespace oscar
