// SPDX-License-Identifier: MIT
// Fisher sums against the definition, in loops that share nothing with the kernel.
#include <doctest/doctest.h>

#include <cmath>

#include "base/threads.hpp"
#include "kernels/cpu/ops.hpp"
#include "support/support.hpp"
#include "unit/kernels/gaussian.hpp"

namespace oscar {
namespace {

constexpr int kHeads = 4, kKvHeads = 2, kDim = 3, kTokens = 340;

struct Rows {
  std::vector<float> q = test::gaussian(kTokens * kHeads * kDim, 1), k = test::gaussian(kTokens * kKvHeads * kDim, 2),
                     v = test::gaussian(k.size(), 3);
  [[nodiscard]] QkvView view() const {
    return {heads_view(q, kTokens, kHeads, kDim), heads_view(k, kTokens, kKvHeads, kDim),
            heads_view(v, kTokens, kKvHeads, kDim)};
  }
  [[nodiscard]] const float* query(std::int64_t t, int head) const { return &q[(t * kHeads + head) * kDim]; }
  [[nodiscard]] const float* key(std::int64_t t, int head) const { return &k[(t * kKvHeads + head) * kDim]; }
  [[nodiscard]] const float* value(std::int64_t t, int head) const { return &v[(t * kKvHeads + head) * kDim]; }
};

void add_outer(double weight, const float* x, std::span<double> gram) {
  for (int a = 0; a < kDim; ++a) {
    for (int b = 0; b < kDim; ++b) gram[a * kDim + b] += weight * x[a] * x[b];
  }
}

/// p_ij for one query, by the definition; 0 outside the history.
std::vector<double> probabilities_of(const Rows& rows, SequenceRange sequence, std::int64_t i, int head,
                                     Windows windows) {
  std::vector<double> p;
  double sum = 0;
  for (std::int64_t j = sequence.begin; j <= i; ++j) {
    double score = 0;
    for (int c = 0; c < kDim; ++c) score += double{rows.query(i, head)[c]} * rows.key(j, head / 2)[c];
    p.push_back(std::exp(score / std::sqrt(double{kDim})));
    sum += p.back();
  }
  for (std::int64_t j = sequence.begin; j <= i; ++j) {
    double& value = p[static_cast<std::size_t>(j - sequence.begin)];
    const bool window = j - sequence.begin < windows.sink || j > i - windows.recent;
    value = window ? 0 : value / sum;
  }
  return p;
}

FisherSums textbook(const Rows& rows, std::span<const SequenceRange> sequences, Windows windows) {
  FisherSums sums(kKvHeads, kDim);
  sums.value = MatrixStack(kKvHeads, kDim);
  for (const SequenceRange& sequence : sequences) {
    for (std::int64_t i = sequence.begin; i < sequence.end; ++i) {
      for (int head = 0; head < kHeads; ++head) {
        const std::vector<double> p = probabilities_of(rows, sequence, i, head, windows);
        const int kv = head / 2;
        for (std::size_t j = 0; j < p.size(); ++j) {
          const double f = p[j] * (1 - p[j]);
          const std::int64_t token = sequence.begin + static_cast<std::int64_t>(j);
          const float* const key = rows.key(token, kv);
          add_outer(f, rows.query(i, head), sums.query[kv]);
          add_outer(f, key, sums.key[kv]);
          for (int c = 0; c < kDim; ++c) sums.key_sum[static_cast<std::size_t>(kv * kDim + c)] += f * key[c];
          sums.weight[static_cast<std::size_t>(kv)] += f;
          add_outer(p[j] * p[j], rows.value(token, kv), sums.value[kv]);
        }
      }
    }
  }
  return sums;
}

void check_near(std::span<const double> got, std::span<const double> expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-10));
}

}  // namespace

TEST_CASE("fisher sums equal the definition, with windows inside each sequence") {
  const Rows rows;
  // The second sequence has more than one block of queries, the third no history.
  const std::vector<SequenceRange> sequences{{0, 30}, {30, 330}, {330, 340}};
  for (const Windows windows : {Windows{4, 9}, Windows{0, 1}, Windows{0, 0}}) {
    FisherSums sums(kKvHeads, kDim);
    sums.value = MatrixStack(kKvHeads, kDim);
    cpu::accumulate_fisher_sums(rows.view(), sequences, windows, sums);
    const FisherSums expected = textbook(rows, sequences, windows);
    check_near(sums.query.data, expected.query.data);
    check_near(sums.key.data, expected.key.data);
    check_near(sums.key_sum, expected.key_sum);
    check_near(sums.weight, expected.weight);
    check_near(sums.value.data, expected.value.data);
  }
}

TEST_CASE("fisher sums do not depend on the number of threads") {
  const Rows rows;
  const std::vector<SequenceRange> sequences{{0, kTokens}};
  std::vector<FisherSums> found;
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    cpu::accumulate_fisher_sums(rows.view(), sequences, {4, 16}, found.emplace_back(kKvHeads, kDim));
  }
  set_num_threads(0);
  CHECK(found[0].query.data == found[1].query.data);
  CHECK(found[0].key.data == found[1].key.data);
  CHECK(found[0].key_sum == found[1].key_sum);
}

}  // namespace oscar
