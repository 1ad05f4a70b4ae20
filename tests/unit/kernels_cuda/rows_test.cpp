// SPDX-License-Identifier: MIT
// Operations row by row: rotation within one unit in the last place, the codec to the bit. Small shapes are held to the
// reference, large ones to the CPU, which is held to the reference elsewhere.
#include "kernels/reference/reference_backend.hpp"
#include "unit/kernels/agreement.hpp"
#include "unit/kernels_cuda/samples.hpp"

namespace oscar {

using namespace test;

TEST_CASE("small: rotate_matches_reference") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = reference::make_reference_backend();
  for (const int head_dim : {64, 80}) check_rotation({*expected, *gpu, kOfGpu}, {DType::kBF16, head_dim, 37});
}

TEST_CASE("rotate_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = make_cpu_backend();
  std::vector<Shape> all = shapes();
  all.push_back({DType::kF32, 256, 5001});
  for (const Shape& shape : all) check_rotation({*expected, *gpu, kOfGpu}, shape);
}

TEST_CASE("small: rows of the coded cache match the reference's to the bit") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = reference::make_reference_backend();
  for (const int head_dim : {8, 64, 72, 80, 112, 128, 192, 256, 576}) {
    check_coded_rows({*expected, *gpu, kOfGpu}, {DType::kF32, head_dim, 67});
  }
}

TEST_CASE("small: quantize_matches_reference") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = reference::make_reference_backend();
  for (const int head_dim : {64, 80, 112, 256, 576}) {
    const Shape shape{DType::kF32, head_dim, 67};
    check_codec({*expected, *gpu, kOfGpu}, shape, {.clip_ratio = 0.5}, Precision::kServing);
    check_codec({*expected, *gpu, kOfGpu}, shape,
                {.group_size = 16, .clip_ratio = 0.96, .clip_search = ClipSearch::kBisect}, Precision::kExact);
    check_codec({*expected, *gpu, kOfGpu}, shape, {.group_size = 16, .grid = Grid::kLeastSquares}, Precision::kServing);
    check_codec({*expected, *gpu, kOfGpu}, shape,
                {.clip_ratio = 0.9, .grid = Grid::kLloydMax, .scale_dtype = DType::kF16}, Precision::kServing);
  }
}

TEST_CASE("quantize_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = make_cpu_backend();
  std::vector<Shape> all;
  for (const int head_dim : {5, 64, 80, 96, 112, 128, 192, 256, 576, 1024})
    all.push_back({DType::kF32, head_dim, 1003});
  all.push_back({DType::kF32, 64, 65555});  // more rows than go to the GPU at a time
  for (const Shape& shape : all) {
    for (const Precision precision : {Precision::kExact, Precision::kServing}) {
      for (const ClipSearch search : {ClipSearch::kSort, ClipSearch::kBisect}) {
        for (const double ratio : {0.0, 0.5, 0.96, 1.0}) {
          check_codec({*expected, *gpu, kOfGpu}, shape, {.clip_ratio = ratio, .clip_search = search}, precision);
        }
      }
      for (const int group_size : {16, 32, 64, 5}) {
        if (shape.head_dim % group_size != 0) continue;
        check_codec({*expected, *gpu, kOfGpu}, shape, {.levels = 16, .group_size = group_size, .clip_ratio = 0.9},
                    precision);
      }
      check_codec({*expected, *gpu, kOfGpu}, shape, {.levels = 256, .group_size = 1}, precision);
    }
  }
}

TEST_CASE("quantize_matches_cpu, least squares") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = make_cpu_backend();
  for (const int head_dim : {5, 64, 80, 96, 128, 256, 1024}) {
    const Shape shape{DType::kF32, head_dim, 503};
    for (int levels = 2; levels <= 16; ++levels) {
      check_codec({*expected, *gpu, kOfGpu}, shape, {.levels = levels, .grid = Grid::kLeastSquares},
                  levels % 2 == 0 ? Precision::kExact : Precision::kServing);
      check_codec({*expected, *gpu, kOfGpu}, shape, {.levels = levels, .clip_ratio = 0.9}, Precision::kExact);
    }
    for (const int group_size : {16, 32, 48, 64, 5, 1}) {
      if (head_dim % group_size != 0) continue;
      check_codec({*expected, *gpu, kOfGpu}, shape, {.group_size = group_size, .grid = Grid::kLeastSquares},
                  Precision::kExact);
    }
  }
}

TEST_CASE("quantize_matches_cpu, lloyd-max") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = make_cpu_backend();
  for (const int head_dim : {5, 64, 80, 96, 128, 256, 1024}) {
    const Shape shape{DType::kF32, head_dim, 503};
    for (const int group_size : {0, 16, 48, 64, 5, 1}) {
      if (group_size != 0 && head_dim % group_size != 0) continue;
      for (const double ratio : {0.0, 0.5, 0.96}) {
        const RowCodec codec{.group_size = group_size, .clip_ratio = ratio, .grid = Grid::kLloydMax};
        check_codec({*expected, *gpu, kOfGpu}, shape, codec, group_size == 0 ? Precision::kServing : Precision::kExact);
      }
    }
  }
}

TEST_CASE("quantize_matches_cpu, scales and zeros of 16 bits") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = make_cpu_backend();
  for (const int head_dim : {5, 64, 96, 128, 576}) {
    const Shape shape{DType::kF32, head_dim, 503};
    for (const Grid grid : {Grid::kMinMax, Grid::kLeastSquares, Grid::kLloydMax}) {
      for (const DType dtype : {DType::kF16, DType::kBF16}) {
        for (const int group_size : {0, 32, 1}) {
          if (group_size != 0 && head_dim % group_size != 0) continue;
          const RowCodec codec{.group_size = group_size, .grid = grid, .scale_dtype = dtype};
          check_codec({*expected, *gpu, kOfGpu}, shape, codec,
                      dtype == DType::kF16 ? Precision::kServing : Precision::kExact);
        }
      }
    }
  }
}

TEST_CASE("the codec on the GPU refuses what the CPU refuses, and rows that are too long for it") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  std::vector<float> rows(128), decoded(128);
  CHECK_ERROR(gpu->quantize(rows, 128, RowCodec{.group_size = 48}, Precision::kExact, decoded, nullptr), UsageError,
              "does not divide head_dim 128");
  rows.resize(1025), decoded.resize(1025);
  CHECK_ERROR(gpu->quantize(rows, 1025, {}, Precision::kExact, decoded, nullptr), UsageError, "longer than");
}

}  // namespace oscar
