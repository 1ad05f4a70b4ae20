// SPDX-License-Identifier: MIT
// Times oscar_int2_decode() as a server runs it: in a CUDA graph, over caches of several layers in turn, so that none
// is still in a cache of the GPU when its turn comes.
#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <random>

#include "kernels/cuda/device_buffer.hpp"
#include "kernels/cuda/ops.hpp"
#include "oscar/int2_attention.h"

namespace oscar::cuda {
namespace {

constexpr int kPageSize = 64, kRepeats = 40;
constexpr double kBeyondCaches = 4e8;  // bytes that all layers together have at least

using Bytes = DeviceBuffer<unsigned char>;

/// Copies `pattern` over and over.
Bytes filled(const Context& context, std::size_t size, std::span<const unsigned char> pattern) {
  Bytes buffer(context, size);
  buffer.upload(context, pattern.first(std::min(size, pattern.size())));
  for (std::size_t done = pattern.size(); done < size; done *= 2) {
    OSCAR_CUDA_TRY(cudaMemcpyAsync(buffer.data() + done, buffer.data(), std::min(done, size - done),
                                   cudaMemcpyDeviceToDevice, context.stream()));
  }
  return buffer;
}

std::vector<unsigned char> bytes_of(const std::vector<float>& values, DType type) {
  std::vector<unsigned char> bytes;
  for (const float value : values) {
    const std::uint16_t half = type == DType::kF16 ? f16_from_float(value) : bf16_from_float(value);
    const void* const from = type == DType::kF32 ? static_cast<const void*>(&value) : &half;
    const auto* const first = static_cast<const unsigned char*>(from);
    bytes.insert(bytes.end(), first, first + size_of(type));
  }
  return bytes;
}

/// Contents that any cache is filled with; what they are does not change how long a step takes.
struct Patterns {
  explicit Patterns(DType scale_dtype) : codes(1 << 20) {
    std::mt19937 random(0);
    std::generate(codes.begin(), codes.end(), [&] { return static_cast<unsigned char>(random()); });
    std::vector<float> values(1 << 16), pairs(1 << 16);
    const auto uniform = [&] { return static_cast<float>(random() % 2048) / 1024 - 1; };
    std::generate(values.begin(), values.end(), uniform);
    for (std::size_t i = 0; i < pairs.size(); i += 2) pairs[i] = 0.8F + 0.5F * uniform(), pairs[i + 1] = 1.5F;
    rows = bytes_of(values, DType::kBF16);
    params = bytes_of(pairs, scale_dtype);
  }
  std::vector<unsigned char> codes, rows, params;
};

/// `rows` rows of `width` bytes for each of `batch` sequences and each KV head, in pages.
class Pool {
 public:
  Pool(const Context& context, const DecodeCase& c, std::int64_t rows, std::size_t width,
       std::span<const unsigned char> pattern)
      : width_(static_cast<std::int64_t>(width)),
        heads_(c.num_kv_heads),
        data_(filled(context, static_cast<std::size_t>(c.batch * pages_of(rows) * kPageSize * heads_) * width,
                     pattern)) {}

  static std::int64_t pages_of(std::int64_t rows) {
    return std::max<std::int64_t>(1, (rows + kPageSize - 1) / kPageSize);
  }
  [[nodiscard]] oscar_paged_rows rows() const {
    return {data_.data(), kPageSize * heads_ * width_, width_, kPageSize * width_};
  }

 private:
  std::int64_t width_, heads_;
  Bytes data_;
};

class Table {
 public:
  Table(const Context& context, int batch, std::int64_t rows)
      : per_sequence_(static_cast<std::int32_t>(Pool::pages_of(rows))),
        length_(static_cast<std::int32_t>(rows)),
        pages_(context, std::span<const std::int32_t>(shuffled(batch * per_sequence_))),
        lengths_(context, std::span<const std::int32_t>(std::vector(static_cast<std::size_t>(batch), length_))) {}

  [[nodiscard]] oscar_page_table table() const {
    return {pages_.data(), lengths_.data(), per_sequence_, kPageSize, length_};
  }

 private:
  static std::vector<std::int32_t> shuffled(int count) {
    std::vector<std::int32_t> pages(static_cast<std::size_t>(count));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(0));
    return pages;
  }

  std::int32_t per_sequence_, length_;
  DeviceBuffer<std::int32_t> pages_, lengths_;
};

std::size_t row_bytes(const DecodeCase& c) { return static_cast<std::size_t>(c.head_dim) / 4; }
std::size_t param_bytes(const DecodeCase& c) {
  return 2 * size_of(c.scale_dtype) * static_cast<std::size_t>(c.head_dim / c.group_size);
}

/// One layer's cache and step.
class Layer {
 public:
  Layer(const Context& context, const DecodeCase& c, Windows windows, const Patterns& patterns)
      : window_(std::min<std::int64_t>(c.tokens, windows.sink + windows.recent)),
        codes_{Pool(context, c, c.tokens - window_, row_bytes(c), patterns.codes),
               Pool(context, c, c.tokens - window_, row_bytes(c), patterns.codes)},
        params_{Pool(context, c, c.tokens - window_, param_bytes(c), patterns.params),
                Pool(context, c, c.tokens - window_, param_bytes(c), patterns.params)},
        windows_{Pool(context, c, window_, 2 * static_cast<std::size_t>(c.head_dim), patterns.rows),
                 Pool(context, c, window_, 2 * static_cast<std::size_t>(c.head_dim), patterns.rows)},
        history_table_(context, c.batch, c.tokens - window_),
        window_table_(context, c.batch, window_),
        q_(filled(context, 2 * outputs(c), patterns.rows)),
        out_(context, outputs(c)) {
    args_.batch = c.batch, args_.num_q_heads = c.num_q_heads, args_.num_kv_heads = c.num_kv_heads;
    args_.head_dim = c.head_dim, args_.group_size = c.group_size;
    args_.param_dtype = c.scale_dtype == DType::kF32   ? OSCAR_FLOAT32
                        : c.scale_dtype == DType::kF16 ? OSCAR_FLOAT16
                                                       : OSCAR_BFLOAT16;
    args_.softmax_scale = 0.1F, args_.q = q_.data(), args_.out = out_.data();
    args_.k_codes = codes_[0].rows(), args_.v_codes = codes_[1].rows();
    args_.k_params = params_[0].rows(), args_.v_params = params_[1].rows();
    args_.k_window = windows_[0].rows(), args_.v_window = windows_[1].rows();
    args_.history = history_table_.table(), args_.window = window_table_.table();
    args_.workspace_bytes = oscar_int2_decode_workspace(&args_);
    if (args_.workspace_bytes == 0) throw UsageError(oscar_int2_error(), c.name, "give a shape that the kernel has");
    workspace_ = Bytes(context, args_.workspace_bytes);
    workspace_.fill_with_zeros(context);
    args_.workspace = workspace_.data();
  }

  void enqueue(cudaStream_t stream) const {
    if (oscar_int2_decode(&args_, stream) != 0)
      throw UsageError(oscar_int2_error(), "int2 decode", "give another shape");
  }

 private:
  static std::size_t outputs(const DecodeCase& c) {
    return static_cast<std::size_t>(c.batch) * static_cast<std::size_t>(c.num_q_heads * c.head_dim);
  }

  std::int64_t window_;
  Pool codes_[2], params_[2], windows_[2];
  Table history_table_, window_table_;
  Bytes q_;
  DeviceBuffer<float> out_;
  Bytes workspace_;
  oscar_int2_decode_args args_{};
};

double bytes_of(const DecodeCase& c, Windows windows) {
  const std::int64_t window = std::min<std::int64_t>(c.tokens, windows.sink + windows.recent);
  const auto history_row = static_cast<double>(2 * (row_bytes(c) + param_bytes(c)));
  return static_cast<double>(c.batch) * c.num_kv_heads *
         (static_cast<double>(c.tokens - window) * history_row + static_cast<double>(window * 4 * c.head_dim));
}

/// Seconds of a replay of what `enqueue` puts into the stream: the median.
double seconds_of(const Context& context, const std::function<void(cudaStream_t)>& enqueue) {
  const cudaStream_t stream = context.stream();
  enqueue(stream);
  context.synchronize();
  OSCAR_CUDA_TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  enqueue(stream);
  cudaGraph_t graph = nullptr;
  OSCAR_CUDA_TRY(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&executable, graph, 0);
  (void)cudaGraphDestroy(graph);
  OSCAR_CUDA_TRY(made);
  const std::unique_ptr<CUgraphExec_st, decltype(&cudaGraphExecDestroy)> owner(executable, &cudaGraphExecDestroy);
  cudaEvent_t events[2];
  for (cudaEvent_t& event : events) OSCAR_CUDA_TRY(cudaEventCreate(&event));
  std::vector<float> times;
  for (int i = 0; i < kRepeats; ++i) {
    throw_if_interrupted();
    OSCAR_CUDA_TRY(cudaEventRecord(events[0], stream));
    OSCAR_CUDA_TRY(cudaGraphLaunch(executable, stream));
    OSCAR_CUDA_TRY(cudaEventRecord(events[1], stream));
    OSCAR_CUDA_TRY(cudaEventSynchronize(events[1]));
    OSCAR_CUDA_TRY(cudaEventElapsedTime(&times.emplace_back(), events[0], events[1]));
  }
  for (const cudaEvent_t event : events) (void)cudaEventDestroy(event);
  std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
  return times[kRepeats / 2] / 1000.0;
}

__global__ void copy_pieces(const uint4* from, uint4* to, std::size_t count) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    to[i] = from[i];
  }
}

/// By a kernel: the copy engine is slower.
double copy_rate(const Context& context) {
  constexpr std::size_t kCount = std::size_t{1} << 26;  // of 16 bytes
  const DeviceBuffer<uint4> from(context, kCount);
  DeviceBuffer<uint4> to(context, kCount);
  return 2 * static_cast<double>(kCount * sizeof(uint4)) / seconds_of(context, [&](cudaStream_t stream) {
           copy_pieces<<<16 * 1024, 256, 0, stream>>>(from.data(), to.data(), kCount);
           OSCAR_CUDA_LAUNCHED("copy_pieces");
         });
}

}  // namespace

DecodeTimings time_decode(const Context& context, std::span<const DecodeCase> cases, Windows windows) {
  DecodeTimings timings{copy_rate(context), {}};
  for (const DecodeCase& c : cases) {
    const double bytes = bytes_of(c, windows);
    const auto count = std::max<std::size_t>(5, static_cast<std::size_t>(kBeyondCaches / bytes) + 1);
    const Patterns patterns(c.scale_dtype);
    std::vector<std::unique_ptr<Layer>> layers;
    for (std::size_t i = 0; i < count; ++i) layers.push_back(std::make_unique<Layer>(context, c, windows, patterns));
    const double seconds = seconds_of(context, [&](cudaStream_t stream) {
      for (const auto& layer : layers) layer->enqueue(stream);
    });
    timings.cases.push_back({seconds * 1e6 / static_cast<double>(count), bytes});
  }
  return timings;
}

}  // namespace oscar::cuda
