// SPDX-License-Identifier: MIT
// Sums over tokens: the GPU against the reference (small shapes) and the CPU, in fp64 and in the fp32 products of GPUs
// that are slow in fp64.
#include <array>
#include <thread>

#include "kernels/reference/reference_backend.hpp"
#include "unit/kernels/agreement.hpp"
#include "unit/kernels_cuda/samples.hpp"

namespace oscar {
namespace {

using namespace test;

constexpr int kHeads = 6;

/// A backend of each kind, with the errors that kernels/README.md allows it.
struct Kind {
  std::string name;
  std::unique_ptr<Backend> gpu;
  Agreement allowed;

  [[nodiscard]] Pair with(Backend& expected) const { return {expected, *gpu, allowed, name}; }
};

std::vector<Kind> kinds_or_skip() {
  std::vector<Kind> kinds;
  static Status silent;
  if (gpu_or_skip() == nullptr) return kinds;
  kinds.push_back({"", gpu_with("OSCAR_CUDA_PRODUCTS", "fp64", silent), kOfGpu});
  kinds.push_back({", fp32", gpu_with("OSCAR_CUDA_PRODUCTS", "fp32", silent), kOfFp32Products});
  return kinds;
}

}  // namespace

TEST_CASE("small: sums of few tokens match the reference") {
  const std::unique_ptr<Backend> expected = reference::make_reference_backend();
  for (const Kind& kind : kinds_or_skip()) {
    for (const Shape& shape : {Shape{DType::kBF16, 128, 37}, Shape{DType::kF16, 80, 1}, Shape{DType::kF32, 10, 70}}) {
      check_grams(kind.with(*expected), shape);
      check_weighted_grams(kind.with(*expected), shape);
      check_output_grams(kind.with(*expected), shape);
    }
    check_residual_grams(kind.with(*expected), {DType::kBF16, 80, 5});
  }
}

TEST_CASE("accumulate_grams_matches_cpu") {
  const std::unique_ptr<Backend> expected = make_cpu_backend();
  for (const Kind& kind : kinds_or_skip()) {
    for (const Shape& shape : shapes()) check_grams(kind.with(*expected), shape);
    check_grams(kind.with(*expected), {DType::kBF16, 256, 12'001});  // several chunks
  }
}

TEST_CASE("small: sums over several parts are those of the whole") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = reference::make_reference_backend();
  const Shape shape{DType::kBF16, 64, 301};
  const Tensor k = activations(shape, kHeads, 31), v = activations(shape, kHeads, 32);
  const auto parts = [](const Tensor& x) {
    const HeadsView whole = heads_view(x, "x");
    return std::array{whole.tokens(0, 1), whole.tokens(1, 200), whole.tokens(200, whole.num_tokens)};
  };
  const MatrixStack forms = symmetric_matrices(kHeads, shape.head_dim, 4);
  MatrixStack plain(2, shape.head_dim), weighted(kHeads, shape.head_dim), expected_plain = plain,
                                                                          expected_weighted = weighted;
  std::vector<double> weights(kHeads), expected_weights(kHeads);
  expected->accumulate_grams(std::array{heads_view(k, "k")}, expected_plain);
  gpu->accumulate_grams(parts(k), plain);
  expected->accumulate_weighted_grams(std::array{heads_view(k, "k")}, forms, std::array{heads_view(v, "v")},
                                      expected_weighted, expected_weights);
  gpu->accumulate_weighted_grams(parts(k), forms, parts(v), weighted, weights);
  check_error("grams of parts", shape, relative_error(plain, expected_plain), 1e-12);
  check_error("weighted grams of parts", shape, relative_error(weighted, expected_weighted), 1e-12);
  check_error("weights of parts", shape,
              largest_difference(weights, expected_weights) / largest_magnitude(expected_weights), 1e-12);
}

TEST_CASE("accumulate_weighted_grams_matches_cpu") {
  const std::unique_ptr<Backend> expected = make_cpu_backend();
  for (const Kind& kind : kinds_or_skip()) {
    for (const Shape& shape : shapes()) check_weighted_grams(kind.with(*expected), shape);
    check_weighted_grams(kind.with(*expected), {DType::kF16, 192, 8'001});
  }
}

TEST_CASE("accumulate_output_grams_matches_cpu") {
  const std::unique_ptr<Backend> expected = make_cpu_backend();
  for (const Kind& kind : kinds_or_skip()) {
    for (const Shape& shape : shapes()) check_output_grams(kind.with(*expected), shape);
    check_output_grams(kind.with(*expected), {DType::kF16, 64, 3001});  // several blocks of queries and tiles of keys
  }
}

TEST_CASE("small: accumulate_fisher_sums_matches_reference") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = reference::make_reference_backend();
  for (const Shape& shape : {Shape{DType::kBF16, 128, 37}, Shape{DType::kF16, 80, 1}, Shape{DType::kF32, 10, 70}}) {
    check_fisher_sums({*expected, *gpu, kOfGpu}, shape);
  }
}

TEST_CASE("accumulate_fisher_sums_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = make_cpu_backend();
  for (const Shape& shape : shapes()) check_fisher_sums({*expected, *gpu, kOfGpu}, shape);
  check_fisher_sums({*expected, *gpu, kOfGpu}, {DType::kF16, 64, 2501});  // several blocks of queries and tiles of keys
}

TEST_CASE("accumulate_residual_grams_matches_cpu") {
  const std::unique_ptr<Backend> expected = make_cpu_backend();
  for (const Kind& kind : kinds_or_skip()) {
    for (const Shape& shape : shapes()) check_residual_grams(kind.with(*expected), shape);
    check_residual_grams(kind.with(*expected), {DType::kBF16, 128, 8'001});
  }
}

TEST_CASE("fp32 products of a whole layer are close to fp64") {
  const std::unique_ptr<Backend> expected = make_cpu_backend();
  for (const Kind& kind : kinds_or_skip()) {
    const Shape shape{DType::kBF16, 64, 30'001};
    const Tensor x = activations(shape, 4, 11);
    check_sum(
        kind.with(*expected), "grams, one layer", shape, MatrixStack(1, 64), 1e-8,
        [&](Backend& backend, MatrixStack& grams) { backend.accumulate_grams(std::array{heads_view(x, "x")}, grams); });
  }
}

TEST_CASE("many short sequences and some long ones are each attended to alone") {
  const std::unique_ptr<Backend> expected = make_cpu_backend();
  for (const Kind& kind : kinds_or_skip()) {
    const Shape shape{DType::kBF16, 64, 6000};
    const Tensor q = activations(shape, 4, 12), k = activations(shape, 2, 13), v = activations(shape, 2, 14);
    const QkvView qkv{heads_view(q, "q"), heads_view(k, "k"), heads_view(v, "v")};
    std::vector<SequenceRange> sequences;
    for (std::int64_t begin = 0; begin < 3000; begin += 150) sequences.push_back({begin, begin + 149});
    for (std::int64_t begin = 3000; begin < 4000; begin += 100) sequences.push_back({begin, begin + 100});
    sequences.push_back({4000, 6000});
    check_sum(kind.with(*expected), "output_grams, many sequences", shape, MatrixStack(2, 64), kind.allowed.output_sums,
              [&](Backend& backend, MatrixStack& grams) { backend.accumulate_output_grams(qkv, sequences, grams); });
  }
}

namespace {

/// All sums of one layer.
struct LayerSums {
  MatrixStack grams{2, 128}, weighted{2, 128}, outputs{2, 128}, residuals{2, 128};
  std::vector<double> weights = std::vector<double>(2);
  bool operator==(const LayerSums& other) const {
    return grams.data == other.grams.data && weighted.data == other.weighted.data &&
           outputs.data == other.outputs.data && residuals.data == other.residuals.data && weights == other.weights;
  }
};

/// Three chunks of queries.
class Layer {
 public:
  explicit Layer(unsigned seed)
      : q_(activations(kShape, 12, seed)), k_(activations(kShape, 2, seed + 1)), v_(activations(kShape, 2, seed + 2)) {}

  [[nodiscard]] LayerSums sums(Backend& backend) const {
    LayerSums result;
    const QkvView qkv{heads_view(q_, "q"), heads_view(k_, "k"), heads_view(v_, "v")};
    const std::vector<SequenceRange> sequences{{0, 900}, {900, 2500}};
    backend.accumulate_grams(std::array{qkv.q}, result.grams);
    backend.accumulate_weighted_grams(std::array{qkv.k}, forms_, std::array{qkv.v}, result.weighted, result.weights);
    backend.accumulate_output_grams(qkv, sequences, result.outputs);
    backend.accumulate_residual_grams(qkv.k, rotation_, RowCodec{.clip_ratio = 0.96}, result.residuals);
    return result;
  }

 private:
  static constexpr Shape kShape{DType::kBF16, 128, 11'000};
  Tensor q_, k_, v_;
  MatrixStack forms_ = symmetric_matrices(2, 128, 90), rotation_ = gaussian_matrices(1, 128, 91);
};

}  // namespace

TEST_CASE("threads that share the GPU get the bits that each would get alone") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  std::vector<Layer> layers;
  for (unsigned seed = 100; seed < 130; seed += 10) layers.emplace_back(seed);
  std::vector<LayerSums> alone;
  for (const Layer& layer : layers) alone.push_back(layer.sums(*gpu));
  CHECK(largest_magnitude(alone[0].grams.data) > 0);
  CHECK_FALSE(alone[0] == alone[1]);
  std::vector<LayerSums> together(2 * layers.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < together.size(); ++i) {
      threads.emplace_back([&, i] { together[i] = layers[i % layers.size()].sums(*gpu); });
    }
  }
  for (std::size_t i = 0; i < together.size(); ++i) CHECK(together[i] == alone[i % layers.size()]);
}

TEST_CASE("with little memory, chunks are smaller and sums are the same to the bit") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const Shape shape{DType::kBF16, 128, 11'000};
  const Tensor q = activations(shape, 12, 200), k = activations(shape, 8, 201), v = activations(shape, 8, 202);
  const MatrixStack forms = symmetric_matrices(8, 128, 92);
  const auto grams = [&](Backend& backend) {
    MatrixStack sums(2, 128);
    backend.accumulate_grams(std::array{heads_view(q, "q")}, sums);
    return sums.data;
  };
  const auto weighted_grams = [&](Backend& backend) {
    MatrixStack sums(8, 128);
    std::vector<double> weights(8);
    backend.accumulate_weighted_grams(std::array{heads_view(k, "k")}, forms, std::array{heads_view(v, "v")}, sums,
                                      weights);
    sums.data.insert(sums.data.end(), weights.begin(), weights.end());
    return sums.data;
  };
  // Between what chunks of 16 MiB and chunks of 8 MiB need.
  Notices notices, weighted_notices;
  CHECK(grams(*gpu_with("OSCAR_CUDA_MEMORY_LIMIT", "52", notices)) == grams(*gpu));
  CHECK(notices.mention("GPU memory is short: working in chunks of 8 MiB"));
  CHECK(weighted_grams(*gpu_with("OSCAR_CUDA_MEMORY_LIMIT", "100", weighted_notices)) == weighted_grams(*gpu));
  CHECK(weighted_notices.mention("GPU memory is short: working in chunks of 8 MiB"));
}

TEST_CASE("a GPU without enough memory is one clear line") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  Notices notices;
  const auto small = gpu_with("OSCAR_CUDA_MEMORY_LIMIT", "4", notices);
  CHECK_ERROR((void)Layer(300).sums(*small), BackendUnavailable, "the GPU is out of memory");
  CHECK(notices.mention("working in chunks of 1 MiB"));
}

}  // namespace oscar
