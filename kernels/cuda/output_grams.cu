// SPDX-License-Identifier: MIT
// Second moments of attention outputs: exact causal softmax of one sequence, a block of queries of all heads at a time,
// against tiles of keys. As in flash attention, each row keeps the highest score so far, the sum of weights relative
// to it and the output that belongs to them, so that memory does not grow with the sequence. The query heads of one KV
// head are rows of the same products. T: gram_sums.hpp.
#include <cmath>

#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/chunks.hpp"
#include "kernels/cuda/gram_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/rows.hpp"

namespace oscar::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kTileKeys = 1024;
constexpr std::int64_t kScores = std::int64_t{1} << 23;  // of one tile: 64 MiB of doubles
constexpr std::int64_t kMostQueries = 512;
constexpr std::int64_t kGramRows = 128;

/// Scores (heads * rows_per_head, keys) of queries from first_query on with the keys from first_key on; a head's rows
/// are its queries' heads_per_query heads.
struct Tile {
  std::int64_t rows, rows_per_head;
  int heads_per_query;
  std::int64_t first_query, first_key;
  int keys;

  __device__ int visible_keys(std::int64_t row) const {
    const std::int64_t query = first_query + row % rows_per_head / heads_per_query;
    return static_cast<int>(min(max(query + 1 - first_key, std::int64_t{0}), std::int64_t{keys}));
  }
};

template <class T>
__device__ T warp_max(T value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value = max(value, __shfl_xor_sync(0xffffffffU, value, step));
  return value;
}
__device__ double warp_sum(double value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffU, value, step);
  return value;
}

/// One warp a row: scores become weights exp(score - highest), and what earlier tiles left is made relative to the
/// highest score so far.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    weigh_keys(Tile tile, int dim, T* scores, T* highest, double* sums, T* outputs) {
  const std::int64_t row = task_index() / kWarp;
  if (row >= tile.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int visible = tile.visible_keys(row);
  T* const row_scores = scores + row * tile.keys;
  const T before = tile.first_key == 0 ? -static_cast<T>(INFINITY) : highest[row];
  T values[kTileKeys / kWarp];
  T top = before;
#pragma unroll
  for (int i = 0; i < kTileKeys / kWarp; ++i) {
    const int key = i * kWarp + lane;
    values[i] = key < visible ? row_scores[key] : -static_cast<T>(INFINITY);
    top = max(top, values[i]);
  }
  top = warp_max(top);
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kTileKeys / kWarp; ++i) {
    const int key = i * kWarp + lane;
    const T weight = key < visible ? exp(values[i] - top) : T{0};
    sum += weight;
    if (key < tile.keys) row_scores[key] = weight;
  }
  sum = warp_sum(sum);
  const T scale = exp(before - top);
  if (tile.first_key > 0) {
    for (int i = lane; i < dim; i += kWarp) outputs[row * dim + i] *= scale;
    sum += sums[row] * static_cast<double>(scale);
  }
  __syncwarp();  // before the lanes that have read them
  if (lane == 0) highest[row] = top, sums[row] = sum;
}

/// (heads, padded_rows, dim) = outputs (heads, rows, dim) / sums (heads, rows), zeros after the last row.
template <class T>
__global__ void normalize_rows(const T* outputs, const double* sums, std::int64_t rows, std::int64_t padded_rows,
                               int dim, double* normalized) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= padded_rows * dim) return;
  const std::int64_t row = blockIdx.y * rows + i / dim;
  normalized[blockIdx.y * padded_rows * dim + i] =
      i / dim < rows ? static_cast<double>(outputs[row * dim + i % dim]) / sums[row] : 0.0;
}

/// What one block of queries needs. Keys and values are (kv_heads, keys, dim), queries (kv_heads, queries * g, dim).
template <class T>
class OutputSums {
 public:
  OutputSums(const Context& context, const QkvView& qkv, std::int64_t longest)
      : context_(context),
        heads_(qkv.k.num_heads),
        g_(qkv.q.num_heads / qkv.k.num_heads),
        queries_(std::clamp<std::int64_t>(kScores / (std::int64_t{kTileKeys} * heads_ * g_), 1,
                                          std::min(kMostQueries, longest))),
        q_(context, values(queries_ * g_, qkv.q.head_dim)),
        k_(context, values(std::min<std::int64_t>(kTileKeys, longest), qkv.k.head_dim)),
        v_(context, values(std::min<std::int64_t>(kTileKeys, longest), qkv.v.head_dim)),
        scores_(context, values(queries_ * g_, std::min<std::int64_t>(kTileKeys, longest))),
        highest_(context, values(queries_ * g_, 1)),
        outputs_(context, values(queries_ * g_, qkv.v.head_dim)),
        weight_sums_(context, highest_.size()),
        normalized_(context, values(padded(queries_ * g_), qkv.v.head_dim)),
        sums_(context, heads_, qkv.v.head_dim) {}

  [[nodiscard]] std::int64_t queries_per_block() const { return queries_; }

  /// q: at most queries_per_block() queries, the first at position `first` of its sequence; k, v: the keys and values
  /// that the last of them sees. All in GPU memory.
  void add(const HeadsView& q, std::int64_t first, const HeadsView& k, const HeadsView& v) {
    const std::int64_t rows = q.num_tokens * g_;
    convert_rows(context_, q, heads_, q.num_tokens, q_.data());
    for (std::int64_t key = 0; key < k.num_tokens; key += kTileKeys) {
      const std::int64_t end = std::min(key + kTileKeys, k.num_tokens);
      const Tile tile{heads_ * rows, rows, g_, first, key, static_cast<int>(end - key)};
      add_tile(tile, k.tokens(key, end), v.tokens(key, end));
    }
    add_outputs(rows, v.head_dim);
  }

  void add_to(MatrixStack& grams) const { sums_.add_to(grams); }

 private:
  [[nodiscard]] std::size_t values(std::int64_t rows, std::int64_t width) const {
    return static_cast<std::size_t>(heads_ * rows * width);
  }
  [[nodiscard]] static std::int64_t padded(std::int64_t rows) { return (rows + kGramRows - 1) / kGramRows * kGramRows; }

  void add_tile(const Tile& tile, const HeadsView& k, const HeadsView& v) {
    convert_rows(context_, k, heads_, tile.keys, k_.data());
    convert_rows(context_, v, heads_, tile.keys, v_.data());
    gemm(context_,
         {.m = tile.rows_per_head,
          .n = tile.keys,
          .k = k.head_dim,
          .b = Transpose::kYes,
          .alpha = 1 / std::sqrt(static_cast<double>(k.head_dim)),
          .batch = heads_},
         q_.data(), k_.data(), scores_.data());
    weigh_keys<<<blocks_for(static_cast<std::size_t>(tile.rows * kWarp)), kThreads, 0, context_.stream()>>>(
        tile, v.head_dim, scores_.data(), highest_.data(), weight_sums_.data(), outputs_.data());
    OSCAR_CUDA_LAUNCHED("weigh_keys");
    gemm(context_,
         {.m = tile.rows_per_head, .n = v.head_dim, .k = tile.keys, .accumulate = tile.first_key > 0, .batch = heads_},
         scores_.data(), v_.data(), outputs_.data());
  }

  void add_outputs(std::int64_t rows, int dim) {
    const std::int64_t padded_rows = padded(rows);
    const dim3 grid(blocks_for(static_cast<std::size_t>(padded_rows * dim)), static_cast<unsigned>(heads_));
    normalize_rows<<<grid, kThreads, 0, context_.stream()>>>(outputs_.data(), weight_sums_.data(), rows, padded_rows,
                                                             dim, normalized_.data());
    OSCAR_CUDA_LAUNCHED("normalize_rows");
    sums_.add(padded_rows / kGramRows, kGramRows, normalized_.data(), normalized_.data());
  }

  const Context& context_;
  int heads_, g_;
  std::int64_t queries_;
  DeviceBuffer<T> q_, k_, v_, scores_, highest_, outputs_;
  DeviceBuffer<double> weight_sums_, normalized_;
  GramSums<double> sums_;
};

/// The next sequences whose keys and values go to the GPU together: neighbours of at most `most` tokens, or one.
std::span<const SequenceRange> next_run(std::span<const SequenceRange> sequences, std::int64_t most) {
  std::size_t count = 1;
  while (count < sequences.size() && sequences[count].begin == sequences[count - 1].end &&
         sequences[count].end - sequences[0].begin <= most) {
    ++count;
  }
  return sequences.first(count);
}

/// One block of queries of a sequence.
struct Block {
  SequenceRange sequence, queries;
};

std::vector<Block> blocks_of(std::span<const SequenceRange> sequences, std::int64_t queries) {
  std::vector<Block> blocks;
  for (const SequenceRange& sequence : sequences) {
    for (const SequenceRange& block : ranges_of(sequence.size(), queries)) {
      blocks.push_back({sequence, {sequence.begin + block.begin, sequence.begin + block.end}});
    }
  }
  return blocks;
}

template <class T>
void add_output_grams(const Context& context, const QkvView& qkv, std::span<const SequenceRange> sequences,
                      MatrixStack& grams) {
  std::int64_t longest = 1;
  for (const SequenceRange& sequence : sequences) longest = std::max(longest, sequence.size());
  OutputSums<T> sums(context, qkv, longest);
  const std::int64_t most =
      static_cast<std::int64_t>(context.device().chunk_bytes()) / (qkv.k.bytes_per_token() + qkv.v.bytes_per_token());
  while (!sequences.empty()) {
    const auto run = next_run(sequences, most);
    sequences = sequences.subspan(run.size());
    const SequenceRange tokens{run.front().begin, run.back().end};
    const QkvView run_rows = qkv.tokens(tokens);
    Chunk<2> keys(context, {qkv.k, qkv.v}, tokens.size());
    keys.fetch({run_rows.k, run_rows.v});
    const auto& [k, v] = keys.arrived();
    const std::vector<Block> blocks = blocks_of(run, sums.queries_per_block());
    std::vector<Views<1>> queries;
    for (const Block& block : blocks) queries.push_back({qkv.q.tokens(block.queries.begin, block.queries.end)});
    for_each_chunk<1>(context, queries, [&](std::size_t i, const auto& chunk) {
      const std::int64_t begin = blocks[i].sequence.begin, end = blocks[i].queries.end;
      sums.add(chunk[0], blocks[i].queries.begin - begin, k.tokens(begin - tokens.begin, end - tokens.begin),
               v.tokens(begin - tokens.begin, end - tokens.begin));
    });
  }
  sums.add_to(grams);
}

}  // namespace

void accumulate_output_grams(const Context& context, const QkvView& qkv, std::span<const SequenceRange> sequences,
                             MatrixStack& grams) {
  OSCAR_CHECK(grams.dim == qkv.v.head_dim && grams.count == qkv.k.num_heads);
  OSCAR_CHECK(qkv.q.num_heads % qkv.k.num_heads == 0);
  with_product_type(context, [&](auto type) { add_output_grams<decltype(type)>(context, qkv, sequences, grams); });
}

}  // namespace oscar::cuda
