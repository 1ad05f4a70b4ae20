// SPDX-License-Identifier: MIT
// Sums over tokens: the GPU against the CPU.
#include "unit/kernels_cuda/samples.hpp"

namespace oscar {
namespace {

using namespace test;

constexpr double kTraceTolerance = 1e-9;  // kernels/README.md
constexpr int kHeads = 6;

/// Both backends add to the same start, so that a sum that is overwritten shows.
struct Sums {
  MatrixStack expected, got;
  Sums(int count, int dim) : expected(symmetric_matrices(count, dim, 77)), got(expected) {}
};

/// More tokens than go to the GPU at a time.
std::vector<Shape> shapes_and_a_long_one() {
  std::vector<Shape> all = shapes();
  all.push_back({DType::kBF16, 256, 5001});
  return all;
}

}  // namespace

TEST_CASE("accumulate_grams_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  for (const Shape& shape : shapes_and_a_long_one()) {
    const Tensor x = activations(shape, kHeads, 1);
    for (const int count : {kHeads, 2, 1}) {
      Sums sums(count, shape.head_dim);
      cpu->accumulate_grams(heads_view(x, "x"), sums.expected);
      gpu->accumulate_grams(heads_view(x, "x"), sums.got);
      // Traces come without the start, which has negative eigenvalues.
      MatrixStack added(count, shape.head_dim);
      cpu->accumulate_grams(heads_view(x, "x"), added);
      for (std::size_t i = 0; i < added.data.size(); ++i) sums.got.data[i] += added.data[i] - sums.expected.data[i];
      check_error("grams", shape, error_over_trace(sums.got, added), kTraceTolerance);
    }
  }
}

TEST_CASE("accumulate_weighted_grams_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  for (const Shape& shape : shapes_and_a_long_one()) {
    const Tensor k = activations(shape, kHeads, 2), v = activations(shape, kHeads, 3);
    // Of any sign, so that some weights are negative and count as zero in the sums.
    const MatrixStack forms = symmetric_matrices(kHeads, shape.head_dim, 4);
    MatrixStack expected(kHeads, shape.head_dim), got(kHeads, shape.head_dim);
    std::vector<double> weights(kHeads, 3.5), expected_weights = weights;
    cpu->accumulate_weighted_grams(heads_view(k, "k"), forms, heads_view(v, "v"), expected, expected_weights);
    gpu->accumulate_weighted_grams(heads_view(k, "k"), forms, heads_view(v, "v"), got, weights);
    check_error("grams, weighted", shape, error_over_trace(got, expected), kTraceTolerance);
    check_error("weights", shape, largest_difference(weights, expected_weights) / largest_magnitude(expected_weights),
                kTraceTolerance);
  }
}

TEST_CASE("accumulate_output_grams_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  std::vector<Shape> all = shapes();
  all.push_back({DType::kF16, 64, 1301});  // more queries than a block holds
  for (const Shape& shape : all) {
    const Tensor q = activations(shape, kHeads, 5), k = activations(shape, 2, 6), v = activations(shape, 2, 7);
    const QkvView qkv{heads_view(q, "q"), heads_view(k, "k"), heads_view(v, "v")};
    const std::int64_t cut = shape.tokens / 7;
    const std::vector<SequenceRange> sequences{{0, cut}, {cut, cut}, {cut, shape.tokens}};
    MatrixStack expected(2, shape.head_dim), got(2, shape.head_dim);
    cpu->accumulate_output_grams(qkv, sequences, expected);
    gpu->accumulate_output_grams(qkv, sequences, got);
    check_error("output_grams", shape, error_over_trace(got, expected), kTraceTolerance);
  }
}

TEST_CASE("accumulate_residual_grams_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  for (const Shape& shape : shapes_and_a_long_one()) {
    const Tensor x = activations(shape, kHeads, 8);
    for (const int matrices : {1, kHeads}) {
      const MatrixStack rotation = gaussian_matrices(matrices, shape.head_dim, 9);
      for (const RowCodec& codec : {RowCodec{.clip_ratio = 0.96}, RowCodec{.group_size = 16}}) {
        MatrixStack expected(kHeads, shape.head_dim), got(kHeads, shape.head_dim);
        cpu->accumulate_residual_grams(heads_view(x, "x"), rotation, codec, expected);
        gpu->accumulate_residual_grams(heads_view(x, "x"), rotation, codec, got);
        check_error("residual_grams", shape, error_over_trace(got, expected), kTraceTolerance);
      }
    }
  }
}

TEST_CASE("sums on the GPU are the same to the bit in every run") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const Shape shape{DType::kBF16, 128, 7001};
  const Tensor x = activations(shape, kHeads, 10);
  std::vector<MatrixStack> runs(3, MatrixStack(2, shape.head_dim));
  for (MatrixStack& grams : runs) gpu->accumulate_grams(heads_view(x, "x"), grams);
  CHECK(largest_magnitude(runs[0].data) > 0);
  CHECK(runs[0].data == runs[1].data);
  CHECK(runs[0].data == runs[2].data);
}

}  // namespace oscar
