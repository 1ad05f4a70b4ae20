// SPDX-License-Identifier: MIT
// Eigenproblems by what defines their solution: A V = V diag(values), V^T V = I, values ascending and those of the CPU.
#include <algorithm>
#include <limits>

#include "unit/kernels_cuda/samples.hpp"

namespace oscar {
namespace {

using namespace test;

constexpr double kTolerance = 1e-11;  // relative to the largest eigenvalue; kernels/README.md allows 1e-10 of values

/// A random matrix, a covariance of falling spectrum, one of a single cluster but for one vector, and zero.
MatrixStack problems(int dim) {
  MatrixStack stack = symmetric_matrices(4, dim, 31);
  const auto size = static_cast<std::size_t>(dim);
  const std::vector<double> u = gaussian(size, 32);
  const MatrixStack factors = gaussian_matrices(1, dim, 33);
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t j = 0; j < size; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < size; ++k) {
        sum += factors[0][i * size + k] * factors[0][j * size + k] * std::exp(-0.2 * double(k));
      }
      stack[1][i * size + j] = sum;
      stack[2][i * size + j] = (i == j ? 1.0 : 0.0) + u[i] * u[j];
      stack[3][i * size + j] = 0;
    }
  }
  return stack;
}

/// max |A V - V diag(values)| and max |V^T V - I|.
struct Residuals {
  double equation = 0, orthogonality = 0;
};
Residuals residuals(std::span<const double> a, const Eigenpairs& pairs, std::size_t dim) {
  Residuals worst;
  const auto v = [&](std::size_t i, std::size_t j) { return pairs.vectors[i * dim + j]; };
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) {
      double product = 0, dot = 0;
      for (std::size_t k = 0; k < dim; ++k) {
        product += a[i * dim + k] * v(k, j);
        dot += v(k, i) * v(k, j);
      }
      worst.equation = std::max(worst.equation, std::abs(product - v(i, j) * pairs.values[j]));
      worst.orthogonality = std::max(worst.orthogonality, std::abs(dot - (i == j ? 1.0 : 0.0)));
    }
  }
  return worst;
}

void check_eigenpairs(Backend& gpu, const MatrixStack& matrices) {
  const Shape shape{DType::kF64, matrices.dim, matrices.count};
  const std::vector<Eigenpairs> expected = make_cpu_backend()->eigh(matrices), got = gpu.eigh(matrices);
  REQUIRE(got.size() == expected.size());
  double values = 0, equation = 0, orthogonality = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double scale = std::max(largest_magnitude(expected[i].values), 1e-300);
    const Residuals r = residuals(matrices[static_cast<int>(i)], got[i], static_cast<std::size_t>(matrices.dim));
    CHECK(std::is_sorted(got[i].values.begin(), got[i].values.end()));
    values = std::max(values, largest_difference(got[i].values, expected[i].values) / scale);
    equation = std::max(equation, r.equation / scale);
    orthogonality = std::max(orthogonality, r.orthogonality);
  }
  check_error("eigh, values", shape, values, kTolerance);
  check_error("eigh, A V - V values", shape, equation, kTolerance);
  check_error("eigh, V^T V - 1", shape, orthogonality, kTolerance);
}

}  // namespace

TEST_CASE("eigh_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  for (const int dim : {1, 2, 33, 64, 80, 96, 112, 128, 192, 256}) check_eigenpairs(*gpu, problems(dim));
}

TEST_CASE("small: eigenproblems match the CPU") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  check_eigenpairs(*gpu, problems(16));
}

TEST_CASE("eigenproblems of all layers come in one batch, the same to the bit each time") {
  if (gpu_or_skip() == nullptr) return;
  Notices notices;
  const std::unique_ptr<Backend> gpu = gpu_with("OSCAR_CUDA_MEMORY_LIMIT", "8192", notices);
  const MatrixStack matrices = symmetric_matrices(72, 128, 35);
  check_eigenpairs(*gpu, matrices);
  const std::vector<Eigenpairs> first = gpu->eigh(matrices), second = gpu->eigh(matrices);
  for (std::size_t i = 0; i < first.size(); ++i) {
    CHECK(first[i].values == second[i].values);
    CHECK(first[i].vectors == second[i].vectors);
  }
  CHECK_FALSE(notices.mention("eigenproblems"));  // none had to be solved again
}

TEST_CASE("eigenproblems whose batch does not fit the GPU are solved one by one, and it says so") {
  if (gpu_or_skip() == nullptr) return;
  const MatrixStack matrices = symmetric_matrices(72, 128, 36);
  // How much the batched solver needs is its secret: somewhere between too little for anything and enough for all.
  bool one_by_one = false;
  for (int mebibytes = 40; mebibytes >= 24 && !one_by_one; mebibytes -= 2) {
    Notices notices;
    check_eigenpairs(*gpu_with("OSCAR_CUDA_MEMORY_LIMIT", std::to_string(mebibytes), notices), matrices);
    one_by_one = notices.mention("eigenproblems are solved one by one");
  }
  CHECK(one_by_one);
}

TEST_CASE("eigh on the GPU takes more matrices than it solves at a time, in order") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  MatrixStack diagonal(600, 2);
  for (int i = 0; i < 600; ++i) diagonal[i][0] = i, diagonal[i][3] = -i;
  const std::vector<Eigenpairs> pairs = gpu->eigh(diagonal);
  REQUIRE(pairs.size() == 600);
  for (std::size_t i = 0; i < 600; ++i) CHECK(pairs[i].values[1] == doctest::Approx(double(i)));
}

TEST_CASE("eigh on the GPU refuses entries that are not finite") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  MatrixStack broken = symmetric_matrices(2, 64, 34);
  broken[1][7] = std::numeric_limits<double>::quiet_NaN();
  CHECK_ERROR(gpu->eigh(broken), NumericalError, "not finite");
}

}  // namespace oscar
