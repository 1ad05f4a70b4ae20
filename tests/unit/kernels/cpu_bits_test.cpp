// SPDX-License-Identifier: MIT
// Bits of the CPU backend: sums do not depend on the number of threads, and eigenpairs are the same on every processor.
// That they are right is tested by tests/conformance.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>

#include "base/errors.hpp"
#include "base/sha256.hpp"
#include "base/threads.hpp"
#include "conformance/samples.hpp"
#include "kernels/cpu/ops.hpp"
#include "support/support.hpp"

namespace oscar {

using namespace test;

TEST_CASE("sums over tokens do not depend on the number of threads") {
  const Shape shape{DType::kF32, 16, 340};
  const Tensor q = activations(shape, 4, 1), k = activations(shape, 2, 2), v = activations(shape, 2, 3);
  const QkvView qkv{heads_view(q, "q"), heads_view(k, "k"), heads_view(v, "v")};
  const std::vector<SequenceRange> sequences{{0, 30}, {30, 340}};
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  std::vector<std::vector<double>> found;
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    FisherSums fisher(2, 16);
    fisher.value = MatrixStack(2, 16);
    MatrixStack grams(2, 16);
    backend->accumulate_fisher_sums(qkv, sequences, {4, 16}, fisher);
    backend->accumulate_grams(std::array{qkv.q}, grams);
    std::vector<double>& all = found.emplace_back(fisher.key_sum);
    for (const MatrixStack* sums : {&fisher.query, &fisher.key, &fisher.value, &grams}) {
      all.insert(all.end(), sums->data.begin(), sums->data.end());
    }
  }
  set_num_threads(0);
  CHECK(found[0] == found[1]);
}

namespace {

/// Symmetric matrices of random multiples of 2^-16 between -0.5 and 0.5, the same on every machine.
MatrixStack problems(int count, int dim) {
  MatrixStack stack(count, dim);
  std::uint64_t state = 1;
  for (int m = 0; m < count; ++m) {
    for (int i = 0; i < dim; ++i) {
      for (int j = 0; j <= i; ++j) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        const double value = static_cast<double>(static_cast<std::int32_t>(state >> 32) >> 16) / 65536.0;
        const auto n = static_cast<std::size_t>(dim);
        stack[m][static_cast<std::size_t>(i) * n + j] = stack[m][static_cast<std::size_t>(j) * n + i] = value;
      }
    }
  }
  return stack;
}

}  // namespace

// Hashes of what Eigen 3.4.0 finds, with vectors of two doubles.
TEST_CASE("eigenpairs have the same bits on every machine") {
  const struct {
    int dim;
    const char* sha256;
  } cases[] = {{128, "6a9f2099d4004ff2dc58ca8ba600c42074941986f5b087efa164db92975b07c6"},
               {600, "71a7c0d925edcceb7f0773a5f0c21a534156b18b877218d9abd0947fed1ab945"}};
  for (const auto& [dim, sha256] : cases) {
    const Eigenpairs pairs = cpu::eigh(problems(1, dim)).front();
    std::string bytes(reinterpret_cast<const char*>(pairs.values.data()), pairs.values.size() * sizeof(double));
    bytes.append(reinterpret_cast<const char*>(pairs.vectors.data()), pairs.vectors.size() * sizeof(double));
    CHECK(sha256_hex(bytes) == std::string(sha256));
  }
}

TEST_CASE("a matrix that is not finite is refused") {
  MatrixStack matrix = problems(1, 4);
  matrix[0][5] = std::nan("");
  CHECK_ERROR(cpu::eigh(matrix), NumericalError, "finite");
}

}  // namespace oscar
