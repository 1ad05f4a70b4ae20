// SPDX-License-Identifier: MIT
// Sums over tokens on the CPU do not depend on the number of threads; that they are right is in cpu_agreement_test.cpp.
#include <doctest/doctest.h>

#include <array>

#include "base/threads.hpp"
#include "unit/kernels/samples.hpp"

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

}  // namespace oscar
