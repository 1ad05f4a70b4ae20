// SPDX-License-Identifier: MIT
// Second moments of queries, keys and values in one launch. The rows of all heads stand in line, in stages of
// kStageRows, and every block takes an equal run of them through shared memory, adding to the layer's sums where a
// run, or a head, ends. A warp has up to 2 x 2 tiles of the upper triangle: 16 rows of 16 channels are the same
// registers as either operand, so that a tile of the diagonal is read once.
#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/fast_divide.cuh"
#include "kernels/cuda/observe_rows.cuh"
#include "kernels/cuda/observe_square.cuh"

namespace oscar::cuda {
namespace {

constexpr int kWarps = 10, kGramThreads = kWarps * 32, kStageRows = 80, kPadding = 8;

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

}  // namespace oscar::cuda
