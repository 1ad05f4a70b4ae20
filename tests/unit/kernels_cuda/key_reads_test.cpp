// SPDX-License-Identifier: MIT
// The gradient of the softmax KL: the GPU against the CPU, over reads of different lengths.
#include <algorithm>

#include "unit/kernels_cuda/samples.hpp"

namespace oscar {
namespace {

using namespace test;

KeyReads reads_of(int head_dim, std::int64_t keys, std::int64_t queries, unsigned seed) {
  const auto floats = [&](std::int64_t rows, unsigned with) {
    const std::vector<double> values = gaussian(static_cast<std::size_t>(rows * head_dim), with);
    return std::vector<float>(values.begin(), values.end());
  };
  KeyReads reads{head_dim, floats(keys, seed), floats(queries, seed + 1), {}};
  for (std::int64_t i = 0; i < queries; ++i) reads.positions.push_back(keys - 1 - (queries - 1 - i) * keys / queries);
  return reads;
}

void check_gradient(Backend& cpu, Backend& gpu, const Shape& shape, const RowCodec& codec, Windows windows) {
  const std::vector<KeyReads> reads{reads_of(shape.head_dim, shape.tokens, 3 * shape.tokens, 51),
                                    reads_of(shape.head_dim, 31, 7, 53),
                                    reads_of(shape.head_dim, shape.tokens / 2, 2, 55)};
  std::vector<const KeyReads*> all;
  for (const KeyReads& each : reads) all.push_back(&each);
  const std::vector<double> matrix = gaussian(static_cast<std::size_t>(shape.head_dim * shape.head_dim), 57);
  std::vector<float> rotation;
  for (const double x : matrix) rotation.push_back(static_cast<float>(x / std::sqrt(shape.head_dim)));
  const KlGradient expected = cpu.hold(all, codec, windows)->gradient(rotation);
  const auto held = gpu.hold(all, codec, windows);
  const KlGradient got = held->gradient(rotation), again = held->gradient(rotation);
  CHECK((got.softmax_kl == again.softmax_kl && got.gradient == again.gradient));
  check_error("key reads, KL, relative", shape, std::abs(got.softmax_kl / expected.softmax_kl - 1), 1e-4);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.gradient.size(); ++i) {
    const double e = got.gradient[i] - expected.gradient[i];
    difference += e * e, norm += expected.gradient[i] * expected.gradient[i];
  }
  check_error("key reads, gradient, relative Frobenius", shape, std::sqrt(difference / norm), 1e-3);
}

}  // namespace

TEST_CASE("small: key_gradient_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  check_gradient(*cpu, *gpu, {DType::kF32, 64, 61}, {.levels = 3, .grid = Grid::kLeastSquares}, {4, 16});
}

TEST_CASE("key_gradient_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  for (const int head_dim : {64, 80, 128, 256}) {
    check_gradient(*cpu, *gpu, {DType::kF32, head_dim, 1031}, {.clip_ratio = 0.96}, {64, 256});
    check_gradient(*cpu, *gpu, {DType::kF32, head_dim, 599}, {.levels = 5, .grid = Grid::kLeastSquares}, {0, 0});
  }
}

}  // namespace oscar
