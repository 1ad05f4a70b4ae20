// SPDX-License-Identifier: MIT
// Operations row by row: rotation within one unit in the last place, the codec to the bit.
#include <algorithm>
#include <cstring>

#include "unit/kernels_cuda/samples.hpp"

namespace oscar {
namespace {

using namespace test;

/// max |a - b| in units of the last place of b, for 24 or 8 bits of mantissa.
double largest_ulps(std::span<const float> a, std::span<const float> b, int mantissa_bits) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    int exponent = 0;
    (void)std::frexp(b[i], &exponent);
    largest = std::max(largest, std::abs(double{a[i]} - b[i]) / std::ldexp(1.0, exponent - mantissa_bits));
  }
  return largest;
}

template <class T>
double differing(std::span<const T> a, std::span<const T> b) {
  double count = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) count += std::memcmp(&a[i], &b[i], sizeof(T)) != 0;
  return count;
}
template <class T>
double differing(const std::vector<T>& a, const std::vector<T>& b) {
  return differing(std::span<const T>(a), std::span<const T>(b));
}

/// Ordinary rows, and rows that are zero, constant, huge, tiny or of few values; some have a zero of either sign as
/// their smallest value, or a clip threshold of zero.
std::vector<float> codec_rows(std::size_t count, std::size_t dim) {
  const std::vector<double> random = gaussian(count * dim, 21);
  std::vector<float> rows(random.begin(), random.end());
  for (std::size_t row = 0; row < count; ++row) {
    const std::span<float> x = std::span(rows).subspan(row * dim, dim);
    for (std::size_t i = 0; i < dim; ++i) {
      if (row % 11 == 1) x[i] = 0.0F;
      if (row % 11 == 2) x[i] = -5.0F;
      if (row % 11 == 3) x[i] *= 1e30F;
      if (row % 11 == 4) x[i] *= 1e-30F;
      if (row % 11 == 5) x[i] = std::round(x[i]);
      if (row % 11 == 6) x[i] = round_to_bf16(x[i]);
      if (row % 11 == 7) x[i] = i % 2 == row / 11 % 2 ? 0.0F : -0.0F;
      if (row % 11 == 8) x[i] = i % 3 == 0 ? (i % 2 == row / 11 % 2 ? 0.0F : -0.0F) : std::abs(x[i]);
      if (row % 11 == 9 && i % 5 != row / 11 % 5) x[i] = 0.0F;
    }
  }
  return rows;
}

void check_codec(Backend& cpu, Backend& gpu, const Shape& shape, const RowCodec& codec, Precision precision) {
  const std::vector<float> rows =
      codec_rows(static_cast<std::size_t>(shape.tokens), static_cast<std::size_t>(shape.head_dim));
  std::vector<float> expected(rows.size());
  Guarded<float> got(rows.size()), without_codes(rows.size());
  QuantizedRows expected_codes, codes;
  cpu.quantize(rows, shape.head_dim, codec, precision, expected, &expected_codes);
  gpu.quantize(rows, shape.head_dim, codec, precision, got.get(), &codes);
  gpu.quantize(rows, shape.head_dim, codec, precision, without_codes.get(), nullptr);
  CHECK((got.intact() && without_codes.intact()));
  const double bits = differing<float>(got.get(), expected) + differing<float>(without_codes.get(), expected) +
                      differing(codes.codes, expected_codes.codes) + differing(codes.scale, expected_codes.scale) +
                      differing(codes.zero, expected_codes.zero);
  check_error("quantize, values that differ", shape, bits, 0);
}

/// Through packed bytes and back.
void check_coded_rows(Backend& cpu, Backend& gpu, const Shape& shape) {
  const std::vector<float> rows =
      codec_rows(static_cast<std::size_t>(shape.tokens), static_cast<std::size_t>(shape.head_dim));
  std::vector<CodedFormat> formats = *coded_formats(6, shape.head_dim);
  formats.push_back(formats.front());
  for (int& levels : formats.back().levels) levels = std::min(levels, 8);  // no wide class
  formats.push_back(formats.front());
  std::ranges::fill(formats.back().levels, 1);  // nothing is stored
  for (const CodedFormat& format : formats) {
    HistoryCodec codec;
    codec.coded = std::make_shared<const std::vector<CodedFormat>>(1, format);
    for (const Precision precision : {Precision::kExact, Precision::kServing}) {
      std::vector<float> expected(rows.size());
      Guarded<float> got(rows.size());
      QuantizedRows expected_bytes, bytes;
      cpu.quantize(rows, shape.head_dim, codec, precision, expected, &expected_bytes);
      gpu.quantize(rows, shape.head_dim, codec, precision, got.get(), &bytes);
      CHECK(got.intact());
      CHECK(!bytes.codes.empty());
      check_error("coded rows, values that differ", shape, differing<float>(got.get(), expected), 0);
      check_error("coded rows, bytes that differ", shape, differing(bytes.codes, expected_bytes.codes), 0);
    }
  }
}

void check_rotation(Backend& cpu, Backend& gpu, const Shape& shape) {
  const Tensor x = activations(shape, 6, 22);
  for (const int count : {1, 2, 6}) {
    const MatrixStack matrices = gaussian_matrices(count, shape.head_dim, 23);
    for (const Precision precision : {Precision::kExact, Precision::kServing}) {
      const bool serving = precision == Precision::kServing;
      std::vector<float> expected(static_cast<std::size_t>(x.size()));
      Guarded<float> got(expected.size());
      cpu.rotate(heads_view(x, "x"), matrices, precision, expected);
      gpu.rotate(heads_view(x, "x"), matrices, precision, got.get());
      CHECK(got.intact());
      CHECK((!serving || all_bf16(got.get())));
      check_error(serving ? "rotate, serving, units in the last place" : "rotate, units in the last place", shape,
                  largest_ulps(got.get(), expected, serving ? 8 : 24), 1);
    }
  }
}

}  // namespace

TEST_CASE("small: rotate_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  for (const int head_dim : {64, 80}) check_rotation(*cpu, *gpu, {DType::kBF16, head_dim, 37});
}

TEST_CASE("rotate_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  std::vector<Shape> all = shapes();
  all.push_back({DType::kF32, 256, 5001});
  for (const Shape& shape : all) check_rotation(*cpu, *gpu, shape);
}

TEST_CASE("small: rows of the coded cache match the CPU's to the bit") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  for (const int head_dim : {8, 64, 72, 80, 112, 128, 192, 256, 576}) {
    check_coded_rows(*cpu, *gpu, {DType::kF32, head_dim, 67});
  }
}

TEST_CASE("small: quantize_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  for (const int head_dim : {64, 80, 112, 256, 576}) {
    const Shape shape{DType::kF32, head_dim, 67};
    check_codec(*cpu, *gpu, shape, {.clip_ratio = 0.5}, Precision::kServing);
    check_codec(*cpu, *gpu, shape, {.group_size = 16, .clip_ratio = 0.96, .clip_search = ClipSearch::kBisect},
                Precision::kExact);
    check_codec(*cpu, *gpu, shape, {.group_size = 16, .grid = Grid::kLeastSquares}, Precision::kServing);
    check_codec(*cpu, *gpu, shape, {.clip_ratio = 0.9, .grid = Grid::kLloydMax, .scale_dtype = DType::kF16},
                Precision::kServing);
  }
}

TEST_CASE("quantize_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  std::vector<Shape> all;
  for (const int head_dim : {5, 64, 80, 96, 112, 128, 192, 256, 576, 1024})
    all.push_back({DType::kF32, head_dim, 1003});
  all.push_back({DType::kF32, 64, 65555});  // more rows than go to the GPU at a time
  for (const Shape& shape : all) {
    for (const Precision precision : {Precision::kExact, Precision::kServing}) {
      for (const ClipSearch search : {ClipSearch::kSort, ClipSearch::kBisect}) {
        for (const double ratio : {0.0, 0.5, 0.96, 1.0}) {
          check_codec(*cpu, *gpu, shape, {.clip_ratio = ratio, .clip_search = search}, precision);
        }
      }
      for (const int group_size : {16, 32, 64, 5}) {
        if (shape.head_dim % group_size != 0) continue;
        check_codec(*cpu, *gpu, shape, {.levels = 16, .group_size = group_size, .clip_ratio = 0.9}, precision);
      }
      check_codec(*cpu, *gpu, shape, {.levels = 256, .group_size = 1}, precision);
    }
  }
}

TEST_CASE("quantize_matches_cpu, least squares") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  for (const int head_dim : {5, 64, 80, 96, 128, 256, 1024}) {
    const Shape shape{DType::kF32, head_dim, 503};
    for (int levels = 2; levels <= 16; ++levels) {
      check_codec(*cpu, *gpu, shape, {.levels = levels, .grid = Grid::kLeastSquares},
                  levels % 2 == 0 ? Precision::kExact : Precision::kServing);
      check_codec(*cpu, *gpu, shape, {.levels = levels, .clip_ratio = 0.9}, Precision::kExact);
    }
    for (const int group_size : {16, 32, 48, 64, 5, 1}) {
      if (head_dim % group_size != 0) continue;
      check_codec(*cpu, *gpu, shape, {.group_size = group_size, .grid = Grid::kLeastSquares}, Precision::kExact);
    }
  }
}

TEST_CASE("quantize_matches_cpu, lloyd-max") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  for (const int head_dim : {5, 64, 80, 96, 128, 256, 1024}) {
    const Shape shape{DType::kF32, head_dim, 503};
    for (const int group_size : {0, 16, 48, 64, 5, 1}) {
      if (group_size != 0 && head_dim % group_size != 0) continue;
      for (const double ratio : {0.0, 0.5, 0.96}) {
        const RowCodec codec{.group_size = group_size, .clip_ratio = ratio, .grid = Grid::kLloydMax};
        check_codec(*cpu, *gpu, shape, codec, group_size == 0 ? Precision::kServing : Precision::kExact);
      }
    }
  }
}

TEST_CASE("quantize_matches_cpu, scales and zeros of 16 bits") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  for (const int head_dim : {5, 64, 96, 128, 576}) {
    const Shape shape{DType::kF32, head_dim, 503};
    for (const Grid grid : {Grid::kMinMax, Grid::kLeastSquares, Grid::kLloydMax}) {
      for (const DType dtype : {DType::kF16, DType::kBF16}) {
        for (const int group_size : {0, 32, 1}) {
          if (group_size != 0 && head_dim % group_size != 0) continue;
          const RowCodec codec{.group_size = group_size, .grid = grid, .scale_dtype = dtype};
          check_codec(*cpu, *gpu, shape, codec, dtype == DType::kF16 ? Precision::kServing : Precision::kExact);
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
