// SPDX-License-Identifier: MIT
// Sums over tokens.
#include <algorithm>
#include <array>

#include "unit/kernels/agreement.hpp"

namespace oscar::test {
namespace {

constexpr int kHeads = 6;

/// Added twice; values are taken where windows hold recent keys alone.
FisherSums fisher_sums(Backend& backend, const QkvView& qkv, std::span<const SequenceRange> sequences,
                       Windows windows) {
  FisherSums sums(qkv.k.num_heads, qkv.k.head_dim);
  if (windows.sink == 0) sums.value = MatrixStack(qkv.v.num_heads, qkv.v.head_dim);
  for (int i = 0; i < 2; ++i) backend.accumulate_fisher_sums(qkv, sequences, windows, sums);
  return sums;
}

}  // namespace

void check_sum(const Pair& on, const std::string& what, const Shape& shape, MatrixStack sums, double tolerance,
               const std::function<void(Backend&, MatrixStack&)>& add) {
  MatrixStack expected(sums.count, sums.dim), got = sums;
  add(on.expected, expected);
  add(on.got, got);
  for (std::size_t i = 0; i < got.data.size(); ++i) got.data[i] -= sums.data[i];
  check_error(what + on.name, shape, relative_error(got, expected), tolerance);
}

void check_grams(const Pair& on, const Shape& shape) {
  const Tensor x = activations(shape, kHeads, 1);
  for (const int count : {kHeads, 2, 1}) {
    check_sum(
        on, "grams", shape, symmetric_matrices(count, shape.head_dim, 77), on.allowed.sums,
        [&](Backend& backend, MatrixStack& grams) { backend.accumulate_grams(std::array{heads_view(x, "x")}, grams); });
  }
}

void check_weighted_grams(const Pair& on, const Shape& shape) {
  const Tensor k = activations(shape, kHeads, 2), v = activations(shape, kHeads, 3);
  // Of any sign, so that some weights are negative and count as zero in the sums.
  const MatrixStack forms = symmetric_matrices(kHeads, shape.head_dim, 4);
  std::vector<std::vector<double>> weights;
  const std::vector<double> start(kHeads, 3.5);
  check_sum(on, "grams, weighted", shape, symmetric_matrices(kHeads, shape.head_dim, 77), on.allowed.sums,
            [&](Backend& backend, MatrixStack& grams) {
              weights.push_back(start);
              backend.accumulate_weighted_grams(std::array{heads_view(k, "k")}, forms, std::array{heads_view(v, "v")},
                                                grams, weights.back());
            });
  // Weights of both signs cancel, so their sum is compared with the largest.
  check_error("weights" + on.name, shape, largest_difference(weights[1], weights[0]) / largest_magnitude(weights[0]),
              1e-12);
}

void check_fisher_sums(const Pair& on, const Shape& shape) {
  const Shape values{shape.dtype, shape.head_dim + 6, shape.tokens};
  const Tensor q = activations(shape, kHeads, 5), k = activations(shape, 2, 6), v = activations(values, 2, 7);
  const QkvView qkv{heads_view(q, "q"), heads_view(k, "k"), heads_view(v, "v")};
  const std::int64_t cut = shape.tokens / 7;
  const std::vector<SequenceRange> sequences{{0, cut}, {cut, cut}, {cut, shape.tokens}};
  for (const Windows windows : {Windows{2, 5}, Windows{0, 1}}) {
    const FisherSums expected = fisher_sums(on.expected, qkv, sequences, windows);
    const FisherSums got = fisher_sums(on.got, qkv, sequences, windows);
    const auto check = [&](const char* what, const std::vector<double>& a, const std::vector<double>& b) {
      check_error(what, shape, largest_difference(a, b) / std::max(largest_magnitude(b), 1e-300), on.allowed.fisher);
    };
    check("fisher, queries", got.query.data, expected.query.data);
    check("fisher, keys", got.key.data, expected.key.data);
    check("fisher, values", got.value.data, expected.value.data);
    check("fisher, sum of keys", got.key_sum, expected.key_sum);
    check("fisher, weight", got.weight, expected.weight);
  }
}

}  // namespace oscar::test
