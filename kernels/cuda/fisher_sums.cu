// SPDX-License-Identifier: MIT
// Moments weighted by what softmax feels, f = p (1 - p) over the history, and those of values by p^2. All scores of a
// few queries of every head are held at once, tile by tile of keys, so that their softmax is one pass; weights multiply
// one side of a product, so that no root is rounded. All in fp64.
#include <cmath>

#include "base/errors.hpp"
#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/chunks.hpp"
#include "kernels/cuda/gram_sums.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/warp.cuh"

namespace oscar::cuda {
namespace {

constexpr std::int64_t kTileKeys = 1024;
constexpr std::int64_t kScores = std::int64_t{1} << 23;  // of one block of queries: 64 MiB of doubles
constexpr std::int64_t kGramRows = 512;                  // of a product

/// Scores of `queries` queries with `keys` keys, (tile, head, row, key of the tile); the rows of a head are its
/// queries' g heads. Rows of queries beyond `valid` are padding.
struct Scores {
  double* values;
  std::int64_t heads, rows_per_head, keys;
  int g;
  std::int64_t first_query, valid;
  Windows windows;

  [[nodiscard]] __host__ __device__ std::int64_t rows() const { return heads * rows_per_head; }
  [[nodiscard]] __device__ double& at(std::int64_t row, std::int64_t key) const {
    const std::int64_t begin = key / kTileKeys * kTileKeys;
    const std::int64_t width = min(kTileKeys, keys - begin);
    return values[begin * rows() + row * width + key - begin];
  }
  /// Keys that the query of a row sees, and the end of its history.
  [[nodiscard]] __device__ std::int64_t seen(std::int64_t row) const {
    const std::int64_t query = row % rows_per_head / g;
    return query < valid ? first_query + query + 1 : 0;
  }
  [[nodiscard]] __device__ std::int64_t history_end(std::int64_t row) const { return seen(row) - windows.recent; }
};

/// One warp a row: scores become p, zero outside the history; row_weights (rows) = sum of f.
__global__ void score_weights(Scores scores, double* row_weights) {
  const std::int64_t row = task_index() / kWarp;
  if (row >= scores.rows()) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t seen = scores.seen(row);
  double top = -INFINITY;
  for (std::int64_t j = lane; j < seen; j += kWarp) top = max(top, scores.at(row, j));
  for (int step = kWarp / 2; step > 0; step /= 2) top = max(top, __shfl_xor_sync(kAllLanes, top, step));
  double sum = 0;
  for (std::int64_t j = lane; j < seen; j += kWarp) sum += exp(scores.at(row, j) - top);
  sum = warp_sum(sum);
  double weight = 0;
  for (std::int64_t j = lane; j < scores.keys; j += kWarp) {
    const bool history = j >= scores.windows.sink && j < scores.history_end(row);
    const double p = history ? exp(scores.at(row, j) - top) / sum : 0.0;
    scores.at(row, j) = p;
    weight += p * (1 - p);
  }
  weight = warp_sum(weight);
  if (lane == 0) row_weights[row] = weight;
}

/// One thread a (head, key): over the rows of the head, key_weights (heads, stride) += sum of f, and value_weights, if
/// not null, += sum of p^2.
__global__ void add_key_weights(Scores scores, double* key_weights, double* value_weights, std::int64_t stride) {
  const std::int64_t i = task_index();
  if (i >= scores.heads * scores.keys) return;
  const std::int64_t head = i / scores.keys, key = i % scores.keys;
  double felt = 0, squares = 0;
  for (std::int64_t row = 0; row < scores.rows_per_head; ++row) {
    const double p = scores.at(head * scores.rows_per_head + row, key);
    felt += p * (1 - p);
    squares += p * p;
  }
  key_weights[head * stride + key] += felt;
  if (value_weights != nullptr) value_weights[head * stride + key] += squares;
}

/// weighted = weights * rows, both (heads, count, dim); the weights of a head are `stride` apart from the next head's.
/// Rows from `valid` on are padding.
__global__ void weigh_rows(const double* rows, const double* weights, std::int64_t stride, std::int64_t heads,
                           std::int64_t count, std::int64_t valid, int dim, double* weighted) {
  const std::int64_t i = task_index();
  if (i >= heads * count * dim) return;
  const std::int64_t row = i / dim % count;
  weighted[i] = row < valid ? weights[i / dim / count * stride + row] * rows[i] : 0.0;
}

/// One thread a (head, channel): sums (heads, dim) += sum over rows (heads, count, dim).
__global__ void add_rows(const double* rows, std::int64_t heads, std::int64_t count, int dim, double* sums) {
  const std::int64_t i = task_index();
  if (i >= heads * dim) return;
  double sum = 0;
  for (std::int64_t row = 0; row < count; ++row) sum += rows[(i / dim * count + row) * dim + i % dim];
  sums[i] += sum;
}

/// What a block of queries, and the keys of a sequence, need.
class Sums {
 public:
  Sums(const Context& context, const QkvView& qkv, std::int64_t longest, Windows windows, bool with_values,
       bool with_base_keys, bool with_base_queries)
      : context_(context),
        windows_(windows),
        with_values_(with_values),
        with_base_keys_(with_base_keys),
        with_base_queries_(with_base_queries),
        heads_(qkv.k.num_heads),
        g_(qkv.q.num_heads / heads_),
        dim_(qkv.k.head_dim),
        value_dim_(qkv.v.head_dim),
        queries_(
            std::clamp<std::int64_t>(kScores / (longest * heads_ * g_), 1, std::max<std::int64_t>(kGramRows / g_, 1))),
        longest_(longest),
        q_(context, values(queries_ * g_, dim_)),
        weighted_q_(context, q_.size()),
        k_(context, values(kTileKeys, dim_)),
        weighted_k_(context, k_.size()),
        scores_(context, values(queries_ * g_, longest)),
        row_weights_(context, values(queries_ * g_, 1)),
        key_weights_(context, values(longest, 1)),
        v_(context, with_values ? values(kTileKeys, value_dim_) : 0),
        weighted_v_(context, v_.size()),
        value_weights_(context, with_values ? values(longest, 1) : 0),
        key_sums_(context, values(1, dim_)),
        query_grams_(context, heads_, dim_),
        key_grams_(context, heads_, dim_),
        value_grams_(context, with_values ? heads_ : 0, value_dim_),
        base_key_sums_(context, values(1, dim_)),
        base_query_grams_(context, with_base_queries ? heads_ : 0, dim_),
        base_key_grams_(context, with_base_keys ? heads_ : 0, dim_),
        weight_(static_cast<std::size_t>(heads_)) {
    key_sums_.fill_with_zeros(context);
    base_key_sums_.fill_with_zeros(context);
  }

  [[nodiscard]] std::int64_t queries_per_block() const { return queries_; }

  void begin_sequence() {
    key_weights_.fill_with_zeros(context_);
    value_weights_.fill_with_zeros(context_);
  }

  /// q: at most queries_per_block() queries, the first at position `first`, and base_q those before RoPE, which is not
  /// read where they are not taken; k: the keys that the last of them sees. In GPU memory.
  void add_queries(const HeadsView& q, const HeadsView& base_q, std::int64_t first, const HeadsView& k) {
    convert_rows(context_, q, heads_, queries_, q_.data());
    const Scores scores{scores_.data(), heads_, queries_ * g_, k.num_tokens, g_, first, q.num_tokens, windows_};
    for (std::int64_t key = 0; key < k.num_tokens; key += kTileKeys) {
      const HeadsView tile = k.tokens(key, std::min(key + kTileKeys, k.num_tokens));
      convert_rows(context_, tile, heads_, tile.num_tokens, k_.data());
      gemm(context_,
           {.m = scores.rows_per_head,
            .n = tile.num_tokens,
            .k = dim_,
            .b = Transpose::kYes,
            .alpha = 1 / std::sqrt(static_cast<double>(dim_)),
            .batch = heads_},
           q_.data(), k_.data(), scores_.data() + key * scores.rows());
    }
    score_weights<<<grid(scores.rows() * kWarp), kThreads, 0, context_.stream()>>>(scores, row_weights_.data());
    OSCAR_CUDA_LAUNCHED("score_weights");
    add_key_weights<<<grid(heads_ * scores.keys), kThreads, 0, context_.stream()>>>(
        scores, key_weights_.data(), with_values_ ? value_weights_.data() : nullptr, longest_);
    OSCAR_CUDA_LAUNCHED("add_key_weights");
    weigh(q_, row_weights_.data(), scores.rows_per_head, scores.rows_per_head, scores.rows_per_head, dim_, weighted_q_);
    query_grams_.add(1, scores.rows_per_head, weighted_q_.data(), q_.data());
    if (!with_base_queries_) return;
    convert_rows(context_, base_q, heads_, queries_, q_.data());
    weigh(q_, row_weights_.data(), scores.rows_per_head, scores.rows_per_head, scores.rows_per_head, dim_, weighted_q_);
    base_query_grams_.add(1, scores.rows_per_head, weighted_q_.data(), q_.data());
  }

  /// All keys and values of the sequence, once its queries are done. base_k and v are not read where those are not
  /// taken.
  void end_sequence(const HeadsView& k, const HeadsView& base_k, const HeadsView& v) {
    const std::vector<double> weights = key_weights_.to_host(context_);
    for (std::size_t i = 0; i < weights.size(); ++i) weight_[i / static_cast<std::size_t>(longest_)] += weights[i];
    add_keys(k, key_sums_, key_grams_);
    if (with_base_keys_) add_keys(base_k, base_key_sums_, base_key_grams_);
    for (std::int64_t key = 0; with_values_ && key < v.num_tokens; key += kTileKeys) {
      const HeadsView tile = v.tokens(key, std::min(key + kTileKeys, v.num_tokens));
      convert_rows(context_, tile, heads_, kTileKeys, v_.data());
      weigh(v_, value_weights_.data() + key, longest_, kTileKeys, tile.num_tokens, value_dim_, weighted_v_);
      value_grams_.add(kTileKeys / kGramRows, kGramRows, weighted_v_.data(), v_.data());
    }
  }

  void add_to(FisherSums& sums) const {
    query_grams_.add_to(sums.query);
    key_grams_.add_to(sums.key);
    if (with_values_) value_grams_.add_to(sums.value);
    if (with_base_queries_) base_query_grams_.add_to(sums.base_query);
    if (with_base_keys_) {
      base_key_grams_.add_to(sums.base_key);
      const std::vector<double> base_sums = base_key_sums_.to_host(context_);
      for (std::size_t i = 0; i < base_sums.size(); ++i) sums.base_key_sum[i] += base_sums[i];
    }
    const std::vector<double> key_sums = key_sums_.to_host(context_);
    for (std::size_t i = 0; i < key_sums.size(); ++i) sums.key_sum[i] += key_sums[i];
    for (std::size_t h = 0; h < weight_.size(); ++h) sums.weight[h] += weight_[h];
  }

 private:
  [[nodiscard]] std::size_t values(std::int64_t rows, std::int64_t width) const {
    return static_cast<std::size_t>(heads_ * rows * width);
  }
  [[nodiscard]] static unsigned grid(std::int64_t tasks) { return blocks_for(static_cast<std::size_t>(tasks)); }

  /// Keys by the weights that the queries of their sequence gave them.
  void add_keys(const HeadsView& k, DeviceBuffer<double>& sums, GramSums<double>& grams) {
    for (std::int64_t key = 0; key < k.num_tokens; key += kTileKeys) {
      const HeadsView tile = k.tokens(key, std::min(key + kTileKeys, k.num_tokens));
      convert_rows(context_, tile, heads_, kTileKeys, k_.data());
      weigh(k_, key_weights_.data() + key, longest_, kTileKeys, tile.num_tokens, dim_, weighted_k_);
      add_rows<<<grid(std::int64_t{heads_} * dim_), kThreads, 0, context_.stream()>>>(weighted_k_.data(), heads_,
                                                                                      kTileKeys, dim_, sums.data());
      OSCAR_CUDA_LAUNCHED("add_rows");
      grams.add(kTileKeys / kGramRows, kGramRows, weighted_k_.data(), k_.data());
    }
  }

  void weigh(const DeviceBuffer<double>& rows, const double* weights, std::int64_t stride, std::int64_t count,
             std::int64_t valid, int dim, DeviceBuffer<double>& weighted) {
    weigh_rows<<<grid(heads_ * count * dim), kThreads, 0, context_.stream()>>>(rows.data(), weights, stride, heads_,
                                                                               count, valid, dim, weighted.data());
    OSCAR_CUDA_LAUNCHED("weigh_rows");
  }

  const Context& context_;
  Windows windows_;
  bool with_values_, with_base_keys_, with_base_queries_;
  int heads_, g_, dim_, value_dim_;
  std::int64_t queries_, longest_;
  DeviceBuffer<double> q_, weighted_q_, k_, weighted_k_, scores_, row_weights_, key_weights_, v_, weighted_v_,
      value_weights_, key_sums_;
  GramSums<double> query_grams_, key_grams_, value_grams_;
  DeviceBuffer<double> base_key_sums_;
  GramSums<double> base_query_grams_, base_key_grams_;
  std::vector<double> weight_;
};

}  // namespace

void accumulate_fisher_sums(const Context& context, const QkvView& qkv, std::span<const SequenceRange> sequences,
                            Windows windows, FisherSums& sums) {
  OSCAR_CHECK(sums.query.dim == qkv.k.head_dim && sums.query.count == qkv.k.num_heads);
  OSCAR_CHECK(qkv.q.num_heads % qkv.k.num_heads == 0 && qkv.q.head_dim == qkv.k.head_dim);
  const bool with_values = sums.value.count > 0, with_base_keys = sums.base_key.count > 0;
  const bool with_base_queries = sums.base_query.count > 0;
  OSCAR_CHECK(!with_base_keys || qkv.base_k.num_heads == qkv.k.num_heads);
  OSCAR_CHECK(!with_base_queries || qkv.base_q.num_heads == qkv.q.num_heads);
  OSCAR_CHECK(!with_values || (sums.value.count == qkv.v.num_heads && sums.value.dim == qkv.v.head_dim));
  std::int64_t longest = 1;
  for (const SequenceRange& sequence : sequences) longest = std::max(longest, sequence.size());
  Sums found(context, qkv, longest, windows, with_values, with_base_keys, with_base_queries);
  for (const SequenceRange& sequence : sequences) {
    if (sequence.size() == 0) continue;
    const QkvView rows = qkv.tokens(sequence);
    Chunk<1> keys(context, {qkv.k}, sequence.size());
    keys.fetch({rows.k});
    const HeadsView k = keys.arrived()[0];
    const std::vector<SequenceRange> blocks = ranges_of(sequence.size(), found.queries_per_block());
    const std::int64_t at_once = found.queries_per_block();
    const auto add = [&](std::size_t i, const HeadsView& q, const HeadsView& base_q) {
      found.add_queries(q, base_q, blocks[i].begin, k.tokens(0, blocks[i].end));
    };
    found.begin_sequence();
    if (with_base_queries) {
      const auto pieces = pieces_of<2>(std::vector<Views<2>>{{rows.q, rows.base_q}}, at_once);
      for_each_chunk<2>(context, pieces, [&](std::size_t i, const auto& chunk) { add(i, chunk[0], chunk[1]); });
    } else {
      const auto pieces = pieces_of<1>(std::vector<Views<1>>{{rows.q}}, at_once);
      for_each_chunk<1>(context, pieces, [&](std::size_t i, const auto& chunk) { add(i, chunk[0], {}); });
    }
    Chunk<1> base_keys(context, {qkv.base_k}, with_base_keys ? sequence.size() : 0);
    if (with_base_keys) base_keys.fetch({rows.base_k});
    Chunk<1> values(context, {qkv.v}, with_values ? sequence.size() : 0);
    if (with_values) values.fetch({rows.v});
    found.end_sequence(k, with_base_keys ? base_keys.arrived()[0] : HeadsView(),
                       with_values ? values.arrived()[0] : HeadsView());
  }
  found.add_to(sums);
}

}  // namespace oscar::cuda
