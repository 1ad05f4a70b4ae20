// SPDX-License-Identifier: MIT
// Sums over tokens: the GPU against the CPU, in fp64 and in the fp32 products of GPUs that are slow in fp64.
#include <array>
#include <functional>
#include <thread>

#include "unit/kernels_cuda/samples.hpp"

namespace oscar {
namespace {

using namespace test;

constexpr int kHeads = 6;

/// A backend of each kind, with the errors that kernels/README.md allows it.
struct Kind {
  std::string name;
  std::unique_ptr<Backend> gpu;
  double tolerance, output_tolerance;
};

std::vector<Kind> kinds_or_skip() {
  std::vector<Kind> kinds;
  static Status silent;
  if (gpu_or_skip() == nullptr) return kinds;
  kinds.push_back({"", gpu_with("OSCAR_CUDA_PRODUCTS", "fp64", silent), 1e-12, 1e-12});
  kinds.push_back({", fp32", gpu_with("OSCAR_CUDA_PRODUCTS", "fp32", silent), 2e-7, 2e-6});
  return kinds;
}

/// `add` on the CPU and on the GPU, each time to the same start, so that a sum that is overwritten shows. What was
/// added is compared.
void compare(const Kind& kind, const std::string& what, const Shape& shape, MatrixStack sums, double tolerance,
             const std::function<void(Backend&, MatrixStack&)>& add) {
  MatrixStack expected(sums.count, sums.dim), got = sums;
  add(*make_cpu_backend(), expected);
  add(*kind.gpu, got);
  for (std::size_t i = 0; i < got.data.size(); ++i) got.data[i] -= sums.data[i];
  check_error(what + kind.name, shape, relative_error(got, expected), tolerance);
}

void check_grams(const Kind& kind, const Shape& shape) {
  const Tensor x = activations(shape, kHeads, 1);
  for (const int count : {kHeads, 2, 1}) {
    compare(
        kind, "grams", shape, symmetric_matrices(count, shape.head_dim, 77), kind.tolerance,
        [&](Backend& backend, MatrixStack& grams) { backend.accumulate_grams(std::array{heads_view(x, "x")}, grams); });
  }
}

void check_weighted_grams(const Kind& kind, const Shape& shape) {
  const Tensor k = activations(shape, kHeads, 2), v = activations(shape, kHeads, 3);
  // Of any sign, so that some weights are negative and count as zero in the sums.
  const MatrixStack forms = symmetric_matrices(kHeads, shape.head_dim, 4);
  std::vector<std::vector<double>> weights;
  const std::vector<double> start(kHeads, 3.5);
  compare(kind, "grams, weighted", shape, symmetric_matrices(kHeads, shape.head_dim, 77), kind.tolerance,
          [&](Backend& backend, MatrixStack& grams) {
            weights.push_back(start);
            backend.accumulate_weighted_grams(std::array{heads_view(k, "k")}, forms, std::array{heads_view(v, "v")},
                                              grams, weights.back());
          });
  // Weights of both signs cancel, so their sum is compared with the largest.
  check_error("weights" + kind.name, shape, largest_difference(weights[1], weights[0]) / largest_magnitude(weights[0]),
              1e-12);
}

void check_output_grams(const Kind& kind, const Shape& shape) {
  const Tensor q = activations(shape, kHeads, 5), k = activations(shape, 2, 6), v = activations(shape, 2, 7);
  const QkvView qkv{heads_view(q, "q"), heads_view(k, "k"), heads_view(v, "v")};
  const std::int64_t cut = shape.tokens / 7;
  const std::vector<SequenceRange> sequences{{0, cut}, {cut, cut}, {cut, shape.tokens}};
  compare(kind, "output_grams", shape, symmetric_matrices(2, shape.head_dim, 77), kind.output_tolerance,
          [&](Backend& backend, MatrixStack& grams) { backend.accumulate_output_grams(qkv, sequences, grams); });
}

/// Added twice; values are taken where windows hold recent keys alone.
FisherSums fisher_sums(Backend& backend, const QkvView& qkv, std::span<const SequenceRange> sequences,
                       Windows windows) {
  FisherSums sums(qkv.k.num_heads, qkv.k.head_dim);
  if (windows.sink == 0) sums.value = MatrixStack(qkv.v.num_heads, qkv.v.head_dim);
  for (int i = 0; i < 2; ++i) backend.accumulate_fisher_sums(qkv, sequences, windows, sums);
  return sums;
}

void check_fisher_sums(Backend& gpu, const Shape& shape) {
  const Shape values{shape.dtype, shape.head_dim + 6, shape.tokens};
  const Tensor q = activations(shape, kHeads, 5), k = activations(shape, 2, 6), v = activations(values, 2, 7);
  const QkvView qkv{heads_view(q, "q"), heads_view(k, "k"), heads_view(v, "v")};
  const std::int64_t cut = shape.tokens / 7;
  const std::vector<SequenceRange> sequences{{0, cut}, {cut, cut}, {cut, shape.tokens}};
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  for (const Windows windows : {Windows{2, 5}, Windows{0, 1}}) {
    const FisherSums expected = fisher_sums(*cpu, qkv, sequences, windows);
    const FisherSums got = fisher_sums(gpu, qkv, sequences, windows);
    const auto check = [&](const char* what, const std::vector<double>& a, const std::vector<double>& b) {
      check_error(what, shape, largest_difference(a, b) / std::max(largest_magnitude(b), 1e-300), 1e-11);
    };
    check("fisher, queries", got.query.data, expected.query.data);
    check("fisher, keys", got.key.data, expected.key.data);
    check("fisher, values", got.value.data, expected.value.data);
    check("fisher, sum of keys", got.key_sum, expected.key_sum);
    check("fisher, weight", got.weight, expected.weight);
  }
}

void check_residual_grams(const Kind& kind, const Shape& shape) {
  const Tensor x = activations(shape, kHeads, 8);
  for (const int matrices : {1, kHeads}) {
    const MatrixStack rotation = gaussian_matrices(matrices, shape.head_dim, 9);
    for (const RowCodec& codec : {RowCodec{.clip_ratio = 0.96}, RowCodec{.group_size = 16}}) {
      compare(kind, "residual_grams", shape, symmetric_matrices(kHeads, shape.head_dim, 77), kind.tolerance,
              [&](Backend& backend, MatrixStack& grams) {
                backend.accumulate_residual_grams(heads_view(x, "x"), rotation, codec, grams);
              });
    }
  }
}

}  // namespace

TEST_CASE("small: sums of few tokens match the CPU") {
  for (const Kind& kind : kinds_or_skip()) {
    for (const Shape& shape : {Shape{DType::kBF16, 128, 37}, Shape{DType::kF16, 80, 1}, Shape{DType::kF32, 10, 70}}) {
      check_grams(kind, shape);
      check_weighted_grams(kind, shape);
      check_output_grams(kind, shape);
    }
    check_residual_grams(kind, {DType::kBF16, 80, 5});
  }
}

TEST_CASE("accumulate_grams_matches_cpu") {
  for (const Kind& kind : kinds_or_skip()) {
    for (const Shape& shape : shapes()) check_grams(kind, shape);
    check_grams(kind, {DType::kBF16, 256, 12'001});  // several chunks
  }
}

TEST_CASE("small: sums over several parts are those of the whole") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
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
  cpu->accumulate_grams(std::array{heads_view(k, "k")}, expected_plain);
  gpu->accumulate_grams(parts(k), plain);
  cpu->accumulate_weighted_grams(std::array{heads_view(k, "k")}, forms, std::array{heads_view(v, "v")},
                                 expected_weighted, expected_weights);
  gpu->accumulate_weighted_grams(parts(k), forms, parts(v), weighted, weights);
  check_error("grams of parts", shape, relative_error(plain, expected_plain), 1e-12);
  check_error("weighted grams of parts", shape, relative_error(weighted, expected_weighted), 1e-12);
  check_error("weights of parts", shape,
              largest_difference(weights, expected_weights) / largest_magnitude(expected_weights), 1e-12);
}

TEST_CASE("accumulate_weighted_grams_matches_cpu") {
  for (const Kind& kind : kinds_or_skip()) {
    for (const Shape& shape : shapes()) check_weighted_grams(kind, shape);
    check_weighted_grams(kind, {DType::kF16, 192, 8'001});
  }
}

TEST_CASE("accumulate_output_grams_matches_cpu") {
  for (const Kind& kind : kinds_or_skip()) {
    for (const Shape& shape : shapes()) check_output_grams(kind, shape);
    check_output_grams(kind, {DType::kF16, 64, 3001});  // several blocks of queries and tiles of keys
  }
}

TEST_CASE("small: accumulate_fisher_sums_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  for (const Shape& shape : {Shape{DType::kBF16, 128, 37}, Shape{DType::kF16, 80, 1}, Shape{DType::kF32, 10, 70}}) {
    check_fisher_sums(*gpu, shape);
  }
}

TEST_CASE("accumulate_fisher_sums_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  for (const Shape& shape : shapes()) check_fisher_sums(*gpu, shape);
  check_fisher_sums(*gpu, {DType::kF16, 64, 2501});  // several blocks of queries and tiles of keys
}

TEST_CASE("accumulate_residual_grams_matches_cpu") {
  for (const Kind& kind : kinds_or_skip()) {
    for (const Shape& shape : shapes()) check_residual_grams(kind, shape);
    check_residual_grams(kind, {DType::kBF16, 128, 8'001});
  }
}

TEST_CASE("fp32 products of a whole layer are close to fp64") {
  for (const Kind& kind : kinds_or_skip()) {
    const Shape shape{DType::kBF16, 64, 30'001};
    const Tensor x = activations(shape, 4, 11);
    compare(kind, "grams, one layer", shape, MatrixStack(1, 64), 1e-8, [&](Backend& backend, MatrixStack& grams) {
      backend.accumulate_grams(std::array{heads_view(x, "x")}, grams);
    });
  }
}

TEST_CASE("many short sequences and some long ones are each attended to alone") {
  for (const Kind& kind : kinds_or_skip()) {
    const Shape shape{DType::kBF16, 64, 6000};
    const Tensor q = activations(shape, 4, 12), k = activations(shape, 2, 13), v = activations(shape, 2, 14);
    const QkvView qkv{heads_view(q, "q"), heads_view(k, "k"), heads_view(v, "v")};
    std::vector<SequenceRange> sequences;
    for (std::int64_t begin = 0; begin < 3000; begin += 150) sequences.push_back({begin, begin + 149});
    for (std::int64_t begin = 3000; begin < 4000; begin += 100) sequences.push_back({begin, begin + 100});
    sequences.push_back({4000, 6000});
    compare(kind, "output_grams, many sequences", shape, MatrixStack(2, 64), kind.output_tolerance,
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
