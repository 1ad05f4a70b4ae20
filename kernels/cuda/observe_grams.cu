// SPDX-License-Identifier: MIT
// Second moments of queries, keys and values in one launch. A block takes a chunk of the rows of one KV head through
// shared memory, kStageRows at a time, and multiplies them with themselves by tensor cores. A warp has up to 2 x 2
// tiles of the upper triangle: 16 rows of 16 channels are the same registers as either operand, so that a tile of the
// diagonal is read once. fp32 sums over kFlushRows rows are added in fp64 registers, and those to the layer's at the
// end.
#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include "kernels/cuda/int2_mma.cuh"
#include "kernels/cuda/int2_pack_tile.cuh"  // load_matrices
#include "kernels/cuda/observe_rows.cuh"

namespace oscar::cuda {
namespace {

constexpr int kTile = 16, kWarps = 10, kGramThreads = kWarps * 32, kStageRows = 32, kFlushRows = 128, kPadding = 8;
static_assert(kFlushRows % kStageRows == 0);

/// How the rows of all KV heads are dealt to blocks: those of queries first, then keys, then values.
struct Deal {
  int chunk_rows = 0, q_chunks = 0, kv_chunks = 0, key_groups = 0, value_groups = 0;         // groups of kWarps squares
  [[nodiscard]] __host__ __device__ int q_blocks() const { return q_chunks * key_groups; }   // of one head
  [[nodiscard]] __host__ __device__ int k_blocks() const { return kv_chunks * key_groups; }  // likewise
  [[nodiscard]] __host__ __device__ int v_blocks() const { return kv_chunks * value_groups; }  // likewise
};

/// What one block does. Row r of a KV head: token r % tokens of its query head r / tokens.
struct Job {
  ObservedRows rows;
  double* sums;  // of the head
  double factor;
  int head, rows_per_token, begin, end, first_square;
  bool keys;
};

__device__ Job job_of(const ObserveCall& call, const Deal& deal) {
  const int heads = call.k.heads, group = call.q.heads / heads, tokens = call.batch * call.tokens;
  int i = static_cast<int>(blockIdx.x);
  const auto job = [&](const ObservedRows& rows, double* sums, double factor, int per_token, int blocks, int chunks,
                       bool keys) {
    const int head = i / blocks, chunk = i % blocks % chunks, squares = i % blocks / chunks;
    const int begin = chunk * deal.chunk_rows, end = min(begin + deal.chunk_rows, tokens * per_token);
    double* const own = sums + static_cast<std::int64_t>(head) * rows.dim * rows.dim;
    return Job{rows, own, factor, head, per_token, begin, end, squares * kWarps, keys};
  };
  if (i < heads * deal.q_blocks()) {
    return job(call.q, call.qqt, call.query_factor, group, deal.q_blocks(), deal.q_chunks, false);
  }
  i -= heads * deal.q_blocks();
  if (i < heads * deal.k_blocks()) return job(call.k, call.ktk, 1, 1, deal.k_blocks(), deal.kv_chunks, true);
  i -= heads * deal.k_blocks();
  return job(call.v, call.vtv, 1, 1, deal.v_blocks(), deal.kv_chunks, false);
}

/// Starts copying the rows of a stage, zeros for those that do not count. A thread has the same channels of every row.
__device__ void load_stage(const ObserveCall& call, const Job& job, int first, std::uint16_t* stage) {
  const int pieces = job.rows.dim / 8, rows_at_once = kGramThreads / pieces, stride = job.rows.dim + kPadding;
  const int thread = static_cast<int>(threadIdx.x), channel = thread % pieces * 8, tokens = call.batch * call.tokens;
  if (thread >= rows_at_once * pieces) return;
  for (int i = thread / pieces; i < kStageRows; i += rows_at_once) {
    const int row = first + i, of_group = job.rows_per_token == 1 ? 0 : row / tokens, token = row - of_group * tokens;
    const bool counts = row < job.end && counts_token(call, static_cast<unsigned>(token));
    const int b = call.batch == 1 ? 0 : token / call.tokens;
    const auto* from = static_cast<const std::uint16_t*>(job.rows.data);
    if (counts) {
      from += b * job.rows.batch_stride + (token - b * call.tokens) * job.rows.token_stride +
              (job.head * job.rows_per_token + of_group) * job.rows.head_stride + channel;
    }
    __pipeline_memcpy_async(stage + i * stride + channel, from, 16, counts ? 0 : 16);
  }
}

/// 16 rows of 16 channels, transposed, as operand: as the left one whole, as the right one 0 and 2 are its first 8
/// columns, 1 and 3 its last.
struct Operand {
  unsigned of[4];
};

__device__ Operand operand_at(const std::uint16_t* x, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto* row = x + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
  Operand out;
  load_matrices<true>(static_cast<unsigned>(__cvta_generic_to_shared(row)), out.of);
  return out;
}

/// One warp's share: tiles (2 row + i, 2 column + j), where they exist and lie in the upper triangle.
template <Half kType>
class Square {
 public:
  __device__ Square(int number, int dim, bool keys) : tiles_(dim / kTile) {
    const int n = (tiles_ + 1) / 2;
    for (; row_ < n && number >= n - row_; ++row_) number -= n - row_;
    column_ = row_ + number;
    keys_ = keys && row_ == column_;
  }

  __device__ void add(const std::uint16_t* x, int stride) {
    if (2 * row_ >= tiles_) return;
#pragma unroll
    for (int k = 0; k < kStageRows; k += kTile) {
      Operand left[2], right[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) left[i] = operand_at(x + k * stride + place(row_, i), stride);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        right[j] = row_ == column_ ? left[j] : operand_at(x + k * stride + place(column_, j), stride);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (!(i > j && row_ == column_)) multiply(left[i], right[j], part_[i][j]);
        }
        if (keys_) mma<kType>(key_part_[i], left[i].of[0], left[i].of[1], left[i].of[2], left[i].of[3], kOnes, kOnes);
      }
    }
  }

  /// Moves fp32 sums to fp64.
  __device__ void flush() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        float& part = part_[i][e / 8][e / 4 % 2][e % 4];
        sums_[i][e / 8][e / 4 % 2][e % 4] += static_cast<double>(part);
        part = 0;
      }
      key_sums_[i][0] += static_cast<double>(key_part_[i][0]), key_sums_[i][1] += static_cast<double>(key_part_[i][2]);
#pragma unroll
      for (float& part : key_part_[i]) part = 0;
    }
  }

  __device__ void add_to_layer(const Job& job, double* key_sums) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, dim = job.rows.dim;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (2 * row_ + i >= tiles_) continue;
      const int row = (2 * row_ + i) * kTile + lane / 4;
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        const int tile = 2 * column_ + e / 8, half = e / 4 % 2, r = row + e % 4 / 2 * 8;
        const int c = tile * kTile + half * 8 + lane % 4 * 2 + e % 2;
        if (tile < tiles_ && r <= c) atomicAdd(job.sums + r * dim + c, job.factor * sums_[i][e / 8][half][e % 4]);
      }
      if (!keys_ || lane % 4 != 0) continue;  // columns of a product with ones are all the same
      atomicAdd(key_sums + row, key_sums_[i][0]);
      atomicAdd(key_sums + row + 8, key_sums_[i][1]);
    }
  }

 private:
  static constexpr unsigned kOnes = kType == Half::kBfloat16 ? 0x3f803f80U : 0x3c003c00U;

  /// The first channel of a tile; of the last one, where there is none.
  __device__ int place(int pair, int i) const { return min(2 * pair + i, tiles_ - 1) * kTile; }

  __device__ static void multiply(const Operand& a, const Operand& b, float (&c)[2][4]) {
    mma<kType>(c[0], a.of[0], a.of[1], a.of[2], a.of[3], b.of[0], b.of[2]);
    mma<kType>(c[1], a.of[0], a.of[1], a.of[2], a.of[3], b.of[1], b.of[3]);
  }

  int tiles_, row_ = 0, column_ = 0;
  bool keys_;
  float part_[2][2][2][4] = {}, key_part_[2][4] = {};
  double sums_[2][2][2][4] = {}, key_sums_[2][2] = {};
};

template <Half kType, int kMostChannels, int kStages>
__global__ void __launch_bounds__(kGramThreads, 1) add_grams(const ObserveCall call, const Deal deal) {
  __shared__ __align__(128) std::uint16_t stages[kStages][kStageRows * (kMostChannels + kPadding)];
  if (call.mask == nullptr)
    number_tokens_in_order(call, blockIdx.x * kGramThreads + threadIdx.x, gridDim.x * kGramThreads);
  const Job job = job_of(call, deal);
  const int stride = job.rows.dim + kPadding, count = (job.end - job.begin + kStageRows - 1) / kStageRows;
  Square<kType> square(job.first_square + static_cast<int>(threadIdx.x) / 32, job.rows.dim, job.keys);
  for (int next = 0; next < kStages - 1; ++next) {
    if (next < count) load_stage(call, job, job.begin + next * kStageRows, stages[next]);
    __pipeline_commit();
  }
  for (int now = 0; now < count; ++now) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();  // `now` has come, and all have done with the stage before it
    const int next = now + kStages - 1;
    if (next < count) load_stage(call, job, job.begin + next * kStageRows, stages[next % kStages]);
    __pipeline_commit();
    square.add(stages[now % kStages], stride);
    if ((now + 1) % (kFlushRows / kStageRows) == 0) square.flush();
  }
  square.flush();
  square.add_to_layer(job, call.key_sums + static_cast<std::int64_t>(job.head) * job.rows.dim);
}

int groups_of(int dim) {
  const int n = (dim / kTile + 1) / 2;
  return (n * (n + 1) / 2 + kWarps - 1) / kWarps;
}

/// Chunks that keep all multiprocessors busy: least waves times (stages of a block, and about eight for its end).
Deal deal_rows(const ObserveCall& call, int multiprocessors) {
  const int tokens = call.batch * call.tokens, group = call.q.heads / call.k.heads;
  Deal best;
  long best_cost = 0;
  for (int stages = 1; stages <= 512; ++stages) {
    Deal deal{.chunk_rows = stages * kStageRows};
    deal.q_chunks = (tokens * group + deal.chunk_rows - 1) / deal.chunk_rows;
    deal.kv_chunks = (tokens + deal.chunk_rows - 1) / deal.chunk_rows;
    deal.key_groups = groups_of(call.k.dim), deal.value_groups = groups_of(call.v.dim);
    const long blocks = static_cast<long>(call.k.heads) * (deal.q_blocks() + deal.k_blocks() + deal.v_blocks());
    const long cost = (blocks + multiprocessors - 1) / multiprocessors * (stages + 8);
    if (best_cost == 0 || cost < best_cost) best = deal, best_cost = cost;
  }
  return best;
}

template <Half kType>
void launch(const ObserveCall& call, int multiprocessors, cudaStream_t stream) {
  const Deal deal = deal_rows(call, multiprocessors);
  const auto blocks = static_cast<unsigned>(call.k.heads * (deal.q_blocks() + deal.k_blocks() + deal.v_blocks()));
  if (call.k.dim <= 128 && call.v.dim <= 128) {
    add_grams<kType, 128, 4><<<blocks, kGramThreads, 0, stream>>>(call, deal);
  } else {
    add_grams<kType, 256, 2><<<blocks, kGramThreads, 0, stream>>>(call, deal);
  }
}

}  // namespace

void launch_grams(const ObserveCall& call, int multiprocessors, cudaStream_t stream) {
  if (call.bfloat16) {
    launch<Half::kBfloat16>(call, multiprocessors, stream);
  } else {
    launch<Half::kFloat16>(call, multiprocessors, stream);
  }
}

}  // namespace oscar::cuda
