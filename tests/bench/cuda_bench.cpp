// SPDX-License-Identifier: MIT
// The CUDA backend's verbs by themselves, on shapes of Qwen3-8B (32 query heads) and GLM-4.7 (96), 30,000 tokens:
// prints one JSON document. Rows come from files in memory, as a dump in the page cache does. Milliseconds are medians
// after a first call that is told apart: it pays for handles and pinned memory.
#include "bench/cuda_bench.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

#include "base/errors.hpp"

namespace oscar {

double milliseconds(const std::function<void()>& task) {
  const auto start = std::chrono::steady_clock::now();
  task();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

Json measure(std::size_t bytes, double flops, const std::function<void()>& task, int repeats) {
  const double first = milliseconds(task);
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) times.push_back(milliseconds(task));
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  return {{"ms", median},
          {"ms_min", times.front()},
          {"ms_first", first},
          {"gb_per_s", static_cast<double>(bytes) / median * 1e-6},
          {"tflop_per_s", flops / median * 1e-9}};
}

MatrixStack covariances(int count, int dim) {
  MatrixStack stack(count, dim);
  std::uint32_t seed = 1;
  for (double& value : stack.data) {
    seed = seed * 1664525U + 1013904223U;
    value = static_cast<double>(seed >> 8) / (1 << 24) - 0.5;
  }
  const auto size = static_cast<std::size_t>(dim);
  for (int m = 0; m < count; ++m) {
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t j = 0; j < i; ++j) stack[m][i * size + j] = stack[m][j * size + i];
      stack[m][i * size + i] += static_cast<double>(i);
    }
  }
  return stack;
}

namespace {

constexpr std::int64_t kTokens = 30'000;
constexpr int kKvHeads = 8, kDim = 128;

/// bfloat16 rows (tokens, heads, kDim) in a file that exists in memory only.
class FileRows {
 public:
  FileRows(std::int64_t tokens, int heads, std::uint32_t seed) : descriptor_(::memfd_create("rows", 0)) {
    view_ = {nullptr, DType::kBF16, tokens, heads, kDim, {descriptor_, 0}};
    const std::size_t bytes = size();
    if (descriptor_ < 0 || ::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) std::abort();
    map_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (map_ == MAP_FAILED) std::abort();
    view_.data = static_cast<const std::byte*>(map_);
    auto* values = static_cast<std::uint16_t*>(map_);
    for (std::size_t i = 0; i < bytes / 2; ++i) {
      seed = seed * 1664525U + 1013904223U;
      values[i] = static_cast<std::uint16_t>((seed >> 16 & 0x80ffU) | 0x3f00U);  // 0.5 to 2, either sign
    }
  }
  ~FileRows() {
    ::munmap(map_, size());
    ::close(descriptor_);
  }
  FileRows(const FileRows&) = delete;
  FileRows& operator=(const FileRows&) = delete;

  [[nodiscard]] std::size_t size() const {
    return static_cast<std::size_t>(view_.num_tokens * view_.bytes_per_token());
  }
  [[nodiscard]] const HeadsView& file() const { return view_; }
  /// The same rows by their mapping alone.
  [[nodiscard]] HeadsView memory() const {
    HeadsView view = view_;
    view.file = {};
    return view;
  }

 private:
  int descriptor_;
  void* map_ = nullptr;
  HeadsView view_;
};

/// The moments of one layer, as a fit takes them.
struct Layer {
  FileRows q, k, v;
  Layer(int heads, std::uint32_t seed)
      : q(kTokens, heads, seed), k(kTokens, kKvHeads, seed + 1), v(kTokens, kKvHeads, seed + 2) {}

  [[nodiscard]] std::size_t size() const { return q.size() + k.size() + v.size(); }
  [[nodiscard]] double query_flops() const { return 2.0 * static_cast<double>(q.size() / 2) * kDim; }
  [[nodiscard]] double value_flops() const { return 4.0 * static_cast<double>(k.size() / 2) * kDim; }
  void add_grams(Backend& backend, const HeadsView& queries) const {
    MatrixStack grams(kKvHeads, kDim);
    backend.accumulate_grams(std::array{queries}, grams);
  }
  void add_weighted_grams(Backend& backend) const {
    static const MatrixStack forms = covariances(kKvHeads, kDim);
    MatrixStack grams(kKvHeads, kDim);
    std::vector<double> weights(kKvHeads);
    backend.accumulate_weighted_grams(std::array{k.file()}, forms, std::array{v.file()}, grams, weights);
  }
};

Json measure_layer(Backend& backend, int heads) {
  const Layer layer(heads, 1), second(heads, 10), third(heads, 20);
  const std::array layers{&layer, &second, &third};
  const auto all_layers = [&] {
    std::vector<std::jthread> threads;
    for (const Layer* each : layers) {
      threads.emplace_back([&backend, each] {
        each->add_grams(backend, each->q.file());
        each->add_weighted_grams(backend);
      });
    }
  };
  return {
      {"grams_from_file",
       measure(layer.q.size(), layer.query_flops(), [&] { layer.add_grams(backend, layer.q.file()); })},
      {"grams_from_memory",
       measure(layer.q.size(), layer.query_flops(), [&] { layer.add_grams(backend, layer.q.memory()); })},
      {"weighted_grams",
       measure(layer.k.size() + layer.v.size(), layer.value_flops(), [&] { layer.add_weighted_grams(backend); })},
      {"three_layers_at_once", measure(3 * layer.size(), 3 * (layer.query_flops() + layer.value_flops()), all_layers)}};
}

Json measure_outputs(Backend& backend, std::int64_t length, int count) {
  const FileRows q(length * count, 32, 30), k(length * count, kKvHeads, 31), v(length * count, kKvHeads, 32);
  std::vector<SequenceRange> sequences;
  for (std::int64_t i = 0; i < count; ++i) sequences.push_back({i * length, (i + 1) * length});
  const double pairs = 0.5 * static_cast<double>(length) * static_cast<double>(length + 1) * 32 * count;
  return measure(
      q.size() + k.size() + v.size(), 4 * kDim * pairs,
      [&] {
        MatrixStack grams(kKvHeads, kDim);
        backend.accumulate_output_grams({q.file(), k.file(), v.file()}, sequences, grams);
      },
      3);
}

void run() {
  Status status;
  Json report;
  std::unique_ptr<Backend> backend;
  report["backend_ms"] = milliseconds([&] { backend = make_backend("cuda", status); });
  report["backend"] = backend->description();
  const MatrixStack matrices = covariances(72, kDim);
  report["eigh_72x128"] = measure(0, 0, [&] { (void)backend->eigh(matrices); });
  report["qwen3_8b"] = measure_layer(*backend, 32);
  report["glm_4_7"] = measure_layer(*backend, 96);
  report["output_grams_8x4096"] = measure_outputs(*backend, 4096, 8);
  report["output_grams_150x200"] = measure_outputs(*backend, 200, 150);
  report["sequences"] = measure_sequences(*backend);
  std::puts(report.dump(1).c_str());
}

}  // namespace
}  // namespace oscar

int main() {
  try {
    oscar::run();
    return 0;
  } catch (const oscar::Error& error) {
    std::fprintf(stderr, "cuda_bench: error: %s (%s)\n", error.what(), error.where().c_str());
    return 1;
  }
}
