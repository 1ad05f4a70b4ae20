// SPDX-License-Identifier: MIT
// Rows that lie on the GPU already are added to the sums of a running model (kernels/observe_rows.hpp).
#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "kernels/cuda/tensor_cores.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/observe_rows.hpp"

namespace oscar::cuda {

// Which tokens of a call count, and where sampled ones go.

/// Where the tokens that count begin and end, without a mask.
__device__ inline std::int64_t boundary(const ObserveCall& call, bool end) {
  const std::int64_t tokens = std::int64_t{call.batch} * call.tokens;
  if (call.cu_seqlens == nullptr) return end ? tokens : 0;
  const int i = end ? call.boundaries - 1 : 0;
  const std::int64_t at = call.cu_seqlens_64 ? static_cast<const std::int64_t*>(call.cu_seqlens)[i]
                                             : static_cast<const std::int32_t*>(call.cu_seqlens)[i];
  return min(max(at, std::int64_t{0}), tokens);
}

/// Token t of batch * tokens.
__device__ inline bool counts_token(const ObserveCall& call, unsigned t) {
  if (call.mask != nullptr) {
    const unsigned tokens = static_cast<unsigned>(call.tokens);
    return call.mask[t / tokens * call.mask_batch_stride + t % tokens * call.mask_token_stride];
  }
  return call.cu_seqlens == nullptr || (t >= boundary(call, false) && t < boundary(call, true));
}

/// The slot of token number i of a uniform sample of n: apps/torch/layer_sums.cpp says why.
__device__ inline std::int64_t slot_of(std::int64_t i, std::uint32_t seed, std::int64_t n) {
  if (i < n) return i;
  std::uint32_t h = static_cast<std::uint32_t>(i) ^ seed;
  h = (h ^ h >> 16) * 0x45d9f3bU;
  h = (h ^ h >> 16) * 0x45d9f3bU;
  h ^= h >> 16;
  return static_cast<std::int64_t>(std::uint64_t{h} * static_cast<std::uint64_t>(i + 1) >> 32);
}

/// Where tokens want a slot of the sample, the latest owns it.
__device__ inline void claim_slot(const ObserveCall& call, std::int64_t number) {
  if (call.sample == 0) return;
  const std::int64_t slot = slot_of(number, call.seed, call.sample);
  if (slot < call.sample) atomicMax(reinterpret_cast<long long*>(call.owners + slot), static_cast<long long>(number));
}

/// Numbers tokens first, first + step … of a call without a mask, -1 for those that do not count; counts[0] is changed
/// by a later kernel.
__device__ inline void number_tokens_in_order(const ObserveCall& call, unsigned first, unsigned step) {
  const std::int64_t begin = boundary(call, false), end = boundary(call, true), seen = call.counts[0];
  for (unsigned t = first; t < static_cast<unsigned>(call.batch * call.tokens); t += step) {
    const bool counts = t >= begin && t < end;
    call.numbers[t] = counts ? seen + t - begin : -1;
    if (counts) claim_slot(call, seen + t - begin);
  }
}

/// Adds the outer products, and keys, of all rows to the sums; without a mask, numbers tokens. Returns a cudaError_t.
int launch_grams(const ObserveCall& call, int multiprocessors, cudaStream_t stream);

// One warp's share of X^T X, by tensor cores.

inline constexpr int kTile = 16;

/// 16 rows of 16 channels, transposed, as operand: as the left one whole, as the right one 0 and 2 are its first 8
/// columns, 1 and 3 its last.
struct Operand {
  unsigned of[4];
};

__device__ __forceinline__ Operand operand_at(const std::uint16_t* x, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto* row = x + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
  Operand out;
  load_matrices<true>(static_cast<unsigned>(__cvta_generic_to_shared(row)), out.of);
  return out;
}

/// A sum of float32 numbers with twice their digits (Kahan): four additions, where fp64 would convert each at a
/// sixteenth of their rate.
class LongSum {
 public:
  __device__ __forceinline__ void add(float x) {
    const float corrected = x - excess_, sum = sum_ + corrected;
    excess_ = (sum - sum_) - corrected;
    sum_ = sum;
  }
  [[nodiscard]] __device__ __forceinline__ double value() const {
    return static_cast<double>(sum_) - static_cast<double>(excess_);
  }

 private:
  float sum_ = 0, excess_ = 0;
};

/// Adds as atomicAdd() does in global memory, of which the compiler does not always see that it is that.
__device__ __forceinline__ void add_to(double* sum, double x) {
  asm volatile("red.global.add.f64 [%0], %1;\n" ::"l"(__cvta_generic_to_global(sum)), "d"(x) : "memory");
}

/// Tiles (2 row + i, 2 column + j) of the upper triangle, where they exist and lie in it.
template <Half kType>
class Square {
 public:
  /// keys: sums of the rows, too.
  __device__ Square(int number, int dim, bool keys) : tiles_(dim / kTile) {
    const int n = (tiles_ + 1) / 2;
    for (; row_ < n && number >= n - row_; ++row_) number -= n - row_;
    column_ = row_ + number;
    keys_ = keys && row_ == column_;
  }

  /// x: (kRows, dim) with rows `stride` apart, in shared memory. Summed in fp32 by themselves.
  template <int kRows>
  __device__ __forceinline__ void add(const std::uint16_t* x, int stride) {
    if (2 * row_ >= tiles_) return;
    row_ == column_ ? add_tiles<kRows, true>(x, stride) : add_tiles<kRows, false>(x, stride);
  }

  /// sums (dim, dim) and key_sums (dim): the layer's.
  __device__ __forceinline__ void add_to_layer(double* sums, int dim, double factor, double* key_sums) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (2 * row_ + i >= tiles_) continue;
      const int row = (2 * row_ + i) * kTile + lane / 4;
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        const int tile = 2 * column_ + e / 8, half = e / 4 % 2, r = row + e % 4 / 2 * 8;
        const int c = tile * kTile + half * 8 + lane % 4 * 2 + e % 2;
        if (tile < tiles_ && r <= c) add_to(sums + r * dim + c, factor * sums_[i][e].value());
      }
      if (!keys_ || lane % 4 != 0) continue;  // columns of a product with ones are all the same
      add_to(key_sums + row, key_sums_[i][0].value());
      add_to(key_sums + row + 8, key_sums_[i][1].value());
    }
  }

 private:
  static constexpr unsigned kOnes = kType == Half::kBfloat16 ? 0x3f803f80U : 0x3c003c00U;

  /// The first channel of a tile; of the last one, where there is none.
  [[nodiscard]] __device__ int place(int pair, int i) const { return min(2 * pair + i, tiles_ - 1) * kTile; }

  template <int kRows, bool kDiagonal>
  __device__ __forceinline__ void add_tiles(const std::uint16_t* x, int stride) {
    float part[2][2][2][4] = {}, key_part[2][4] = {};
    const int rows[2] = {place(row_, 0), place(row_, 1)}, columns[2] = {place(column_, 0), place(column_, 1)};
#pragma unroll
    for (int k = 0; k < kRows; k += kTile) {
      const Operand left[2] = {operand_at(x + k * stride + rows[0], stride),
                               operand_at(x + k * stride + rows[1], stride)};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const Operand right = kDiagonal ? left[j] : operand_at(x + k * stride + columns[j], stride);
#pragma unroll
        for (int i = 0; i < (kDiagonal ? j + 1 : 2); ++i) multiply(left[i], right, part[i][j]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto& [a, b, c, d] = left[i].of;
        if (kDiagonal && keys_) mma<kType>(key_part[i], a, b, c, d, kOnes, kOnes);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int e = kDiagonal ? 8 * i : 0; e < 16; ++e) sums_[i][e].add(part[i][e / 8][e / 4 % 2][e % 4]);
      if (kDiagonal && keys_) key_sums_[i][0].add(key_part[i][0]), key_sums_[i][1].add(key_part[i][2]);
    }
  }

  __device__ __forceinline__ static void multiply(const Operand& a, const Operand& b, float (&c)[2][4]) {
    mma<kType>(c[0], a.of[0], a.of[1], a.of[2], a.of[3], b.of[0], b.of[2]);
    mma<kType>(c[1], a.of[0], a.of[1], a.of[2], a.of[3], b.of[1], b.of[3]);
  }

  int tiles_, row_ = 0, column_ = 0;
  bool keys_;
  LongSum sums_[2][16], key_sums_[2][2];
};

// Second moments of queries, keys and values in one launch. The rows of all heads stand in line, in stages of
// kStageRows, and every block takes an equal run of them through shared memory, adding to the layer's sums where a
// run, or a head, ends. A warp has up to 2 x 2 tiles of the upper triangle: 16 rows of 16 channels are the same
// registers as either operand, so that a tile of the diagonal is read once.

namespace {

constexpr int kWarps = 10, kGramThreads = kWarps * 32, kStageRows = 80, kPadding = 8;

/// Division by one number, exact for numbers from 0 to below 2^31: a multiplication and a shift.
struct FastDivide {
  unsigned multiple = 0;
  int shift = 0;

  FastDivide() = default;
  /// by: positive.
  explicit FastDivide(int by) : shift(31 + std::bit_width(static_cast<unsigned>(by) - 1)) {
    const auto divisor = static_cast<std::uint64_t>(by);
    multiple = static_cast<unsigned>(((std::uint64_t{1} << shift) + divisor - 1) / divisor);
  }
  [[nodiscard]] __device__ __forceinline__ int quotient(int number) const {
    return static_cast<int>(static_cast<std::uint64_t>(number) * multiple >> shift);
  }
};

/// The stages of a call: of the queries of each KV head, then of keys, then of values. Sums of more than kWarps
/// squares take several passes over the rows.
struct Line {
  int stages, group, key_passes, value_passes;  // stages of one head's tokens; query heads of a KV head
  FastDivide tokens;                            // of a sequence

  explicit Line(const ObserveCall& call)
      : stages((call.batch * call.tokens + kStageRows - 1) / kStageRows),
        group(call.q.heads / call.k.heads),
        key_passes(passes_of(call.k.dim)),
        value_passes(passes_of(call.v.dim)),
        tokens(call.tokens) {}
  [[nodiscard]] int total(int heads) const { return heads * stages * (key_passes * (group + 1) + value_passes); }

 private:
  static int passes_of(int dim) {
    const int n = (dim / kTile + 1) / 2;
    return (n * (n + 1) / 2 + kWarps - 1) / kWarps;
  }
};

/// Stages in a row with the same sums.
struct Job {
  ObservedRows rows;
  double* sums;
  double factor;
  int head, first_row_head, first_square, stage, count;
  bool keys;
};

__device__ Job job_at(const ObserveCall& call, const Line& line, int at) {
  const auto job = [&](const ObservedRows& rows, double* sums, double factor, int group, int passes, bool keys) {
    const int of_pass = group * line.stages, head = at / (passes * of_pass), stage = at % of_pass;
    double* const own = sums + static_cast<std::int64_t>(head) * rows.dim * rows.dim;
    return Job{rows, own, factor, head, head * group, at / of_pass % passes * kWarps, stage, of_pass - stage, keys};
  };
  const int keys = call.k.heads * line.stages * line.key_passes, queries = keys * line.group;
  if (at < queries) return job(call.q, call.qqt, call.query_factor, line.group, line.key_passes, false);
  at -= queries;
  if (at < keys) return job(call.k, call.ktk, 1, 1, line.key_passes, true);
  at -= keys;
  return job(call.v, call.vtv, 1, 1, line.value_passes, false);
}

/// Copies the stages of a job, one after the other. A thread has the same channels of every row.
class Loader {
 public:
  __device__ Loader(const ObserveCall& call, const Line& line, const Job& job)
      : call_(call),
        line_(line),
        rows_(job.rows),
        begin_(static_cast<int>(boundary(call, false))),
        end_(static_cast<int>(boundary(call, true))),
        stage_(job.stage % line.stages),
        rows_at_once_(kGramThreads * 8 / job.rows.dim) {
    const int pieces = job.rows.dim / 8, thread = static_cast<int>(threadIdx.x);
    row_ = thread / pieces < rows_at_once_ ? thread / pieces : kStageRows;
    channel_ = thread % pieces * 8;
    from_ = static_cast<const std::uint16_t*>(rows_.data) + channel_ +
            (job.first_row_head + job.stage / line.stages) * rows_.head_stride;
  }

  /// Starts copying the next stage, zeros for rows that do not count.
  __device__ __forceinline__ void copy(std::uint16_t* to) {
    const int stride = rows_.dim + kPadding, first = stage_ * kStageRows;
    to += row_ * stride + channel_;
    if (call_.batch == 1 && call_.mask == nullptr) {
      const std::uint16_t* row = from_ + (first + row_) * rows_.token_stride;
#pragma unroll 4
      for (int i = row_; i < kStageRows; i += rows_at_once_) {
        copy_row(to, row, first + i >= begin_ && first + i < end_);
        row += rows_at_once_ * rows_.token_stride, to += rows_at_once_ * stride;
      }
    } else {
      for (int i = row_; i < kStageRows; i += rows_at_once_) {
        const int b = line_.tokens.quotient(first + i), t = first + i - b * call_.tokens;
        const bool counts =
            first + i >= begin_ && first + i < end_ &&
            (call_.mask == nullptr || call_.mask[b * call_.mask_batch_stride + t * call_.mask_token_stride]);
        copy_row(to, from_ + b * rows_.batch_stride + t * rows_.token_stride, counts);
        to += rows_at_once_ * stride;
      }
    }
    if (++stage_ == line_.stages) stage_ = 0, from_ += rows_.head_stride;
  }

 private:
  __device__ __forceinline__ void copy_row(std::uint16_t* to, const std::uint16_t* row, bool counts) const {
    __pipeline_memcpy_async(to, counts ? row : from_, 16, counts ? 0 : 16);
  }

  const ObserveCall& call_;
  const Line& line_;
  const ObservedRows rows_;
  const std::uint16_t* from_;
  int begin_, end_;  // tokens that may count
  int stage_, row_, channel_, rows_at_once_;
};

/// Adds `count` stages of the job. stages: kStages buffers of kStageRows padded rows.
template <Half kType, int kStages>
__device__ void run(const ObserveCall& call, const Line& line, const Job& job, int count, std::uint16_t* stages) {
  const int stride = job.rows.dim + kPadding, size = kStageRows * stride;
  Loader loader(call, line, job);
  Square<kType> square(job.first_square + static_cast<int>(threadIdx.x) / 32, job.rows.dim, job.keys);
  for (int next = 0; next < kStages - 1; ++next) {
    if (next < count) loader.copy(stages + next * size);
    __pipeline_commit();
  }
  for (int now = 0; now < count; ++now) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();  // `now` has come, and all have done with the stage before it
    const int next = now + kStages - 1;
    if (next < count) loader.copy(stages + next % kStages * size);
    __pipeline_commit();
    square.template add<kStageRows>(stages + now % kStages * size, stride);
  }
  square.add_to_layer(job.sums, job.rows.dim, job.factor,
                      call.key_sums + static_cast<std::int64_t>(job.head) * job.rows.dim);
  __syncthreads();  // all have done with the last stage
}

template <Half kType, int kStages>
__global__ void __launch_bounds__(kGramThreads, 1)
    add_grams(const __grid_constant__ ObserveCall call, const __grid_constant__ Line line, int total) {
  extern __shared__ __align__(128) std::uint16_t stages[];
  if (call.mask == nullptr)
    number_tokens_in_order(call, blockIdx.x * kGramThreads + threadIdx.x, gridDim.x * kGramThreads);
  const auto share = [&](unsigned block) { return static_cast<int>(std::int64_t{total} * block / gridDim.x); };
  const int end = share(blockIdx.x + 1);
  for (int at = share(blockIdx.x); at < end;) {
    const Job job = job_at(call, line, at);
    const int count = min(job.count, end - at);
    run<kType, kStages>(call, line, job, count, stages);
    at += count;
  }
}

template <Half kType, int kStages>
int launch(const ObserveCall& call, int multiprocessors, cudaStream_t stream) {
  const Line line(call);
  const int total = line.total(call.k.heads);
  // The same for all shapes: threads that observe different models must not lower each other's limit.
  constexpr int kShared = kStages * kStageRows * ((kStages == 3 ? 128 : 256) + kPadding) * 2;
  const auto kernel = add_grams<kType, kStages>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (status != cudaSuccess) return status;
  kernel<<<static_cast<unsigned>(std::min(total, multiprocessors)), kGramThreads, static_cast<std::size_t>(kShared),
           stream>>>(call, line, total);
  return cudaGetLastError();
}

template <Half kType>
int launch_type(const ObserveCall& call, int multiprocessors, cudaStream_t stream) {
  return std::max(call.k.dim, call.v.dim) <= 128 ? launch<kType, 3>(call, multiprocessors, stream)
                                                 : launch<kType, 2>(call, multiprocessors, stream);
}

}  // namespace

int launch_grams(const ObserveCall& call, int multiprocessors, cudaStream_t stream) {
  return call.bfloat16 ? launch_type<Half::kBfloat16>(call, multiprocessors, stream)
                       : launch_type<Half::kFloat16>(call, multiprocessors, stream);
}

namespace {

constexpr unsigned kNumberThreads = 1024, kWarp = 32;

/// One block: numbers the tokens that count by a mask, in order, writes -1 for others, and counts them.
__global__ void __launch_bounds__(kNumberThreads) number_masked_tokens(const ObserveCall call) {
  __shared__ unsigned of_warp[kWarp], before_warp[kWarp], of_block;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned tokens = static_cast<unsigned>(call.batch * call.tokens);
  std::int64_t first = call.counts[0];
  __syncthreads();  // all have read it
  for (unsigned begin = 0; begin < tokens; begin += kNumberThreads) {
    const unsigned t = begin + threadIdx.x;
    const bool counts = t < tokens && counts_token(call, t);
    const unsigned votes = __ballot_sync(~0U, counts);
    if (lane == 0) of_warp[warp] = static_cast<unsigned>(__popc(votes));
    __syncthreads();
    if (warp == 0) {
      unsigned sum = of_warp[lane];
      for (unsigned distance = 1; distance < kWarp; distance *= 2) {
        const unsigned lower = __shfl_up_sync(~0U, sum, distance);
        if (lane >= distance) sum += lower;
      }
      before_warp[lane] = sum - of_warp[lane];
      if (lane == kWarp - 1) of_block = sum;
    }
    __syncthreads();
    const std::int64_t number = first + before_warp[warp] + __popc(votes & ((1U << lane) - 1));
    first += of_block;
    if (t < tokens) call.numbers[t] = counts ? number : -1;
    if (counts) claim_slot(call, number);
    __syncthreads();  // before of_warp and of_block change
  }
  if (threadIdx.x == 0) call.counts[0] = first;
}

/// A warp copies the heads of one token, 16 bytes a lane, kAtOnce times before it waits for the first.
__device__ void copy_token(const ObservedRows& rows, std::int64_t b, std::int64_t t, void* to, std::int64_t slot) {
  constexpr int kAtOnce = 4;
  const auto* from = static_cast<const std::uint16_t*>(rows.data) + b * rows.batch_stride + t * rows.token_stride;
  const int per_row = rows.dim / 8, pieces = rows.heads * per_row;
  auto* out = static_cast<uint4*>(to) + slot * pieces;
  for (int first = static_cast<int>(threadIdx.x % kWarp); first < pieces; first += kAtOnce * kWarp) {
    uint4 held[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int i = min(first + n * static_cast<int>(kWarp), pieces - 1);
      held[n] = *reinterpret_cast<const uint4*>(from + i / per_row * rows.head_stride + i % per_row * 8);
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      if (const int i = first + n * static_cast<int>(kWarp); i < pieces) out[i] = held[n];
    }
  }
}

/// Two warps a token, for keys and for values: keep it if it still owns its slot. The first thread counts what was
/// numbered in order.
__global__ void copy_sampled(const ObserveCall call) {
  if (task_index() == 0) {
    if (call.mask == nullptr) call.counts[0] += boundary(call, true) - boundary(call, false);
    call.counts[1] += call.sequences;
  }
  const auto t = task_index() / (2 * kWarp);
  if (t >= std::int64_t{call.batch} * call.tokens || call.sample == 0) return;
  const std::int64_t number = call.numbers[t];
  if (number < 0) return;
  const std::int64_t slot = slot_of(number, call.seed, call.sample);
  if (slot >= call.sample || call.owners[slot] != number) return;
  const bool keys = task_index() / kWarp % 2 == 0;
  copy_token(keys ? call.k : call.v, t / call.tokens, t % call.tokens, keys ? call.k_rows : call.v_rows, slot);
}

bool is_taken(const ObservedRows& rows) {
  const auto aligned = [](std::int64_t stride) { return stride % 8 == 0; };
  return rows.dim % 16 == 0 && rows.dim <= 256 && reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 &&
         aligned(rows.batch_stride) && aligned(rows.token_stride) && aligned(rows.head_stride);
}

}  // namespace
}  // namespace oscar::cuda

namespace oscar {

bool can_observe(const ObserveCall& call) {
  constexpr std::int64_t kMostRows = std::int64_t{1} << 30;
  return cuda::is_taken(call.q) && cuda::is_taken(call.k) && cuda::is_taken(call.v) &&
         std::int64_t{call.batch} * call.tokens * call.q.heads < kMostRows;
}

int observe_rows(const ObserveCall& call, void* stream) {
  int device = 0, multiprocessors = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (status != cudaSuccess) return status;
  auto* const queue = static_cast<cudaStream_t>(stream);
  if (call.mask != nullptr) cuda::number_masked_tokens<<<1, cuda::kNumberThreads, 0, queue>>>(call);
  if (const int failed = cuda::launch_grams(call, multiprocessors, queue); failed != cudaSuccess) return failed;
  const auto threads = static_cast<std::size_t>(call.batch) * static_cast<std::size_t>(call.tokens) * 2 * cuda::kWarp;
  cuda::copy_sampled<<<cuda::blocks_for(threads), cuda::kThreads, 0, queue>>>(call);
  return cudaGetLastError();
}

}  // namespace oscar
