// SPDX-License-Identifier: MIT
// Eigenproblems by what defines their solution: A V = V diag(values), V^T V = I, values ascending and those of the CPU.
#include <limits>

#include "kernels/reference/reference_backend.hpp"
#include "unit/kernels/agreement.hpp"
#include "unit/kernels_cuda/samples.hpp"

namespace oscar {

using namespace test;

TEST_CASE("eigh_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = make_cpu_backend();
  for (const int dim : {1, 2, 33, 64, 80, 96, 112, 128, 192, 256})
    check_eigenpairs({*expected, *gpu, kOfGpu}, eigenproblems(dim));
}

TEST_CASE("small: eigenproblems match the reference") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = reference::make_reference_backend();
  check_eigenpairs({*expected, *gpu, kOfGpu}, eigenproblems(16));
}

TEST_CASE("eigenproblems of all layers come in one batch, the same to the bit each time") {
  if (gpu_or_skip() == nullptr) return;
  Notices notices;
  const std::unique_ptr<Backend> gpu = gpu_with("OSCAR_CUDA_MEMORY_LIMIT", "8192", notices);
  const MatrixStack matrices = symmetric_matrices(72, 128, 35);
  check_eigenpairs({*make_cpu_backend(), *gpu, kOfGpu}, matrices);
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
    check_eigenpairs(
        {*make_cpu_backend(), *gpu_with("OSCAR_CUDA_MEMORY_LIMIT", std::to_string(mebibytes), notices), kOfGpu},
        matrices);
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
