// SPDX-License-Identifier: MIT
// Second moments of attention outputs: exact causal softmax in fp64, a block of queries at a time, so that memory stays
// O(block * keys). Partial sums are added in task order.
#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "base/threads.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cpu/blas.hpp"
#include "kernels/cpu/exp.hpp"
#include "kernels/cpu/ops.hpp"

namespace oscar::cpu {
namespace {

constexpr std::int64_t kQueryBlock = 256;
constexpr std::size_t kWaveTasks = 64;  // bounds the memory of partial sums

struct Task {
  SequenceRange sequence;
  std::int64_t query = 0;  // first query of the block, relative to the sequence
  int query_head = 0;
};

std::vector<Task> make_tasks(std::span<const SequenceRange> sequences, int num_query_heads) {
  std::vector<Task> tasks;
  for (const SequenceRange& sequence : sequences) {
    for (int head = 0; head < num_query_heads; ++head) {
      for (std::int64_t query = 0; query < sequence.size(); query += kQueryBlock)
        tasks.push_back({sequence, query, head});
    }
  }
  return tasks;
}

/// Row i of scores (queries, keys) keeps keys 0 … first_key + i.
void causal_softmax(double* scores, std::int64_t queries, std::int64_t keys, std::int64_t first_key) {
  for (std::int64_t i = 0; i < queries; ++i) {
    const std::span<double> row(scores + i * keys, static_cast<std::size_t>(keys));
    const std::span<double> seen = row.first(static_cast<std::size_t>(first_key + i + 1));
    const double top = *std::max_element(seen.begin(), seen.end());
    for (double& s : seen) s -= top;
    exp_in_place(seen);
    double sum = 0;
    for (const double p : seen) sum += p;
    for (double& p : seen) p /= sum;
    std::fill(row.begin() + static_cast<std::ptrdiff_t>(seen.size()), row.end(), 0.0);
  }
}

void add_block(const QkvView& qkv, const Task& task, double* upper) {
  const int dk = qkv.k.head_dim, dv = qkv.v.head_dim, head = task.query_head / (qkv.q.num_heads / qkv.k.num_heads);
  const std::int64_t queries = std::min(kQueryBlock, task.sequence.size() - task.query), keys = task.query + queries;
  const std::int64_t first = task.sequence.begin;
  std::vector<double> q(static_cast<std::size_t>(queries * dk)), k(static_cast<std::size_t>(keys * dk)),
      v(static_cast<std::size_t>(keys * dv)), scores(static_cast<std::size_t>(queries * keys)),
      outputs(static_cast<std::size_t>(queries * dv));
  qkv.q.head_rows(first + task.query, queries, task.query_head, q.data());
  qkv.k.head_rows(first, keys, head, k.data());
  qkv.v.head_rows(first, keys, head, v.data());
  gemm({.m = queries, .n = keys, .k = dk, .b = Transpose::kYes, .alpha = 1 / std::sqrt(static_cast<double>(dk))},
       q.data(), dk, k.data(), dk, scores.data(), keys);
  causal_softmax(scores.data(), queries, keys, task.query);
  gemm({.m = queries, .n = dv, .k = keys}, scores.data(), keys, v.data(), dv, outputs.data(), dv);
  add_gram_upper(outputs.data(), queries, dv, upper);
}

}  // namespace

void accumulate_output_grams(const QkvView& qkv, std::span<const SequenceRange> sequences, MatrixStack& grams) {
  OSCAR_CHECK(grams.dim == qkv.v.head_dim && grams.count == qkv.k.num_heads);
  const int d = grams.dim, g = qkv.q.num_heads / qkv.k.num_heads;
  const std::size_t size = static_cast<std::size_t>(d) * d;
  const std::vector<Task> tasks = make_tasks(sequences, qkv.q.num_heads);
  for (std::size_t first = 0; first < tasks.size(); first += kWaveTasks) {
    const std::size_t count = std::min(kWaveTasks, tasks.size() - first);
    std::vector<double> partials(count * size);
    parallel_for(count, [&](std::size_t i) { add_block(qkv, tasks[first + i], &partials[i * size]); });
    for (std::size_t i = 0; i < count; ++i) {
      add_symmetric(std::span(partials).subspan(i * size, size), grams[tasks[first + i].query_head / g], d);
    }
  }
}

}  // namespace oscar::cpu
