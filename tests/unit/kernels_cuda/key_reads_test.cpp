// SPDX-License-Identifier: MIT
// The gradient of the softmax KL: the GPU against the reference and the CPU, over reads of different lengths.
#include "kernels/reference/reference_backend.hpp"
#include "unit/kernels/agreement.hpp"
#include "unit/kernels_cuda/samples.hpp"

namespace oscar {

using namespace test;

TEST_CASE("small: key_gradient_matches_reference") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = reference::make_reference_backend();
  check_gradient({*expected, *gpu, kOfGpu}, {DType::kF32, 64, 61}, {.levels = 3, .grid = Grid::kLeastSquares}, {4, 16});
}

TEST_CASE("key_gradient_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = make_cpu_backend();
  for (const int head_dim : {64, 80, 128, 256}) {
    check_gradient({*expected, *gpu, kOfGpu}, {DType::kF32, head_dim, 1031}, {.clip_ratio = 0.96}, {64, 256});
    check_gradient({*expected, *gpu, kOfGpu}, {DType::kF32, head_dim, 599}, {.levels = 5, .grid = Grid::kLeastSquares},
                   {0, 0});
  }
}

}  // namespace oscar
