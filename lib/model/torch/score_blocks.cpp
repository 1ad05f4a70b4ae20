// SPDX-License-Identifier: MIT
#include "model/torch/score_blocks.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace oscar {
namespace {

constexpr std::int64_t kQueryBlock = 256;                // at least
constexpr std::int64_t kScores = std::int64_t{1} << 26;  // in memory at a time on a GPU

}  // namespace

std::int64_t queries_at_once(const at::Tensor& q) {
  return q.is_cpu() ? kQueryBlock : std::max(kQueryBlock, kScores / (q.size(0) * q.size(1)));
}

ScoreBlock score_block(const MixerSpec& mixer, const at::Tensor& q, const at::Tensor& k, std::int64_t begin,
                       std::int64_t end) {
  ScoreBlock block{begin, end, mixer.window > 0 ? std::max<std::int64_t>(0, begin - mixer.window + 1) : 0, {}, {}, {}};
  const double scale = 1 / std::sqrt(static_cast<double>(mixer.head_dim));
  block.scores = at::matmul(block.of_queries(q), block.of_keys(k).transpose(1, 2)) * scale;
  if (mixer.soft_cap > 0) {
    const at::Tensor part = at::tanh(block.scores / mixer.soft_cap);
    block.scores = part * mixer.soft_cap;
    block.slope = 1 - part * part;
  }
  const auto positions = [&](std::int64_t from) { return at::arange(from, end, q.options().dtype(at::kLong)); };
  block.behind = positions(begin).unsqueeze(1) - positions(block.first).unsqueeze(0);
  at::Tensor hidden = block.behind < 0;
  if (mixer.window > 0) hidden = hidden.logical_or(block.behind >= mixer.window);
  block.scores = block.scores.masked_fill(hidden, -std::numeric_limits<float>::infinity());
  return block;
}

at::Tensor ScoreBlock::shares(const at::Tensor& sinks) const {
  if (!sinks.defined()) return at::softmax(scores, -1);
  const at::Tensor all = at::cat({scores, sinks.expand({scores.size(0), end - begin, 1})}, -1);
  return at::softmax(all, -1).narrow(-1, 0, end - first);
}

}  // namespace oscar
